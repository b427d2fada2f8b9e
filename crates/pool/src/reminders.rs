//! Reminders: mail some days before a pool ends, once for each end.

use std::fmt;
use std::str::FromStr;

use crate::change::reread;
use crate::model::DAY_S;
use crate::reading::pools;
use crate::sql::params;
use crate::{ChangeOrigin, Pool, PoolRef, PoolResult, PoolState, Pools};

/// Age in seconds from which on an unfinished attempt to send is attributed to a killed command.
const SENDING_S: i64 = 3600;
/// Longest address, by RFC 5321.
const ADDRESS_MAX: usize = 254;

/// An address for mail: one, that can stand in a header and behind a command as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// Returns the address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let is_fit = |c: char| c.is_ascii_graphic() && !"\"(),:;<>@[]\\`|&$'".contains(c);
        let parts = text.split_once('@').filter(|(user, host)| !user.is_empty() && !host.is_empty());
        let is_plain = |part: &str| part.chars().all(is_fit) && !part.starts_with(['-', '.']);
        match parts {
            Some((user, host)) if text.len() <= ADDRESS_MAX && is_plain(user) && is_plain(host) => {
                Ok(Address(text.to_owned()))
            }
            _ => Err("is no address for mail; write one, NAME@HOST, without quotes or comments".to_owned()),
        }
    }
}

/// Time and recipient of a reminder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reminder {
    /// Days before the end.
    pub days: u32,
    /// Recipient.
    pub mail: Address,
}

impl Pools {
    /// Sets or clears the reminder of a pool's end.
    ///
    /// # Errors
    /// That it is not the caller's, or has ended.
    pub fn set_reminder(
        &mut self,
        change: &ChangeOrigin<'_>,
        meant: &PoolRef,
        reminder: Option<&Reminder>,
    ) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            pool.must_live(meant, change.now_s)?;
            let (days, mail) = (reminder.map(|to| to.days), reminder.map(|to| to.mail.as_str()));
            transaction.execute(
                "UPDATE pool SET remind_days = ?2, mail = ?3, reminded_s = NULL, reminding_s = NULL WHERE id = ?1",
                params![pool.id, days, mail],
            )?;
            let detail = days.map_or("nobody".into(), |days| format!("{days} days before its end"));
            change.note(transaction, pool.id, "reminder", &detail)
        })
    }

    /// Returns the caller's pools with a reminder that is due and not sent.
    pub fn to_remind(&self, change: &ChangeOrigin<'_>) -> PoolResult<Vec<Pool>> {
        // An attempt that lies ahead was begun under a wrong clock, and does not count.
        // A reminder is for one end: once the end has moved, another one is due.
        let order = format!(
            "SELECT {} FROM pool WHERE mail IS NOT NULL AND remind_days IS NOT NULL
             AND expires_s - remind_days * {DAY_S} <= ?1 AND (reminded_s IS NULL OR reminded_s <> expires_s)
             AND (reminding_s IS NULL OR reminding_s > ?1 OR reminding_s <= ?1 - {SENDING_S})
             AND state IN ('live', 'expired') ORDER BY id",
            crate::reading::COLUMNS
        );
        let found =
            pools(&self.connection, &order, params![change.now_s]).map_err(|error| self.failed(&error))?;
        Ok(found.into_iter().filter(|pool| pool.is_own(change.who)).collect())
    }

    /// Takes it on to remind of a pool's end; nothing if another command has done so, or its end has moved.
    pub fn begin_reminder(&mut self, change: &ChangeOrigin<'_>, pool: &Pool) -> PoolResult<Option<Pool>> {
        let due = |pool: &Pool, all: &[Pool]| {
            all.iter().any(|one| one.id == pool.id && one.expires_s == pool.expires_s)
        };
        // State and rights are looked at here; under the lock only what other commands compete for.
        if !due(pool, &self.to_remind(change)?) {
            return Ok(None);
        }
        self.in_transaction(|transaction| {
            let taken = transaction.execute(
                &format!(
                    "UPDATE pool SET reminding_s = ?2 WHERE id = ?1 AND expires_s = ?3
                     AND (reminded_s IS NULL OR reminded_s <> expires_s)
                     AND (reminding_s IS NULL OR reminding_s > ?2 OR reminding_s <= ?2 - {SENDING_S})"
                ),
                params![pool.id, change.now_s, pool.expires_s],
            )?;
            if taken == 0 {
                return Ok(None);
            }
            reread(transaction, pool.id).map(Some)
        })
    }

    /// Records the result of sending: a reminder that was not sent is repeated by the next command.
    pub fn end_reminder(&mut self, change: &ChangeOrigin<'_>, pool: &Pool, was_sent: bool) -> PoolResult<()> {
        self.in_transaction(|transaction| {
            let sent_for = was_sent.then_some(pool.expires_s);
            transaction.execute(
                "UPDATE pool SET reminding_s = NULL, reminded_s = coalesce(?2, reminded_s) WHERE id = ?1",
                params![pool.id, sent_for],
            )?;
            if was_sent {
                let plain = ChangeOrigin { request: None, ..change.clone() };
                plain.note(transaction, pool.id, "remind", pool.mail.as_deref().unwrap_or_default())?;
            }
            Ok(())
        })
    }
}

impl Pool {
    /// Returns whether the lifetime is over at a time.
    #[must_use]
    pub fn is_over(&self, now_s: i64) -> bool {
        self.state_at(now_s) != PoolState::Live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_that_needs_no_quotes() {
        for good in ["me@site.example", "a.b+c_d-e@x"] {
            assert_eq!(good.parse::<Address>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            "me",
            "@x",
            "me@",
            "a b@x",
            "a@x,b@y",
            "a@x\nBcc: b@y",
            "a@x\r",
            "-oQ@x",
            "a@-x",
            "\"a\"@x",
            "a@x>",
            "<a@x",
            "a;b@x",
            "$(id)@x",
            "a`id`@x",
            "a|b@x",
            "a@b@c",
            "é@x",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad:?}");
        }
        assert!(format!("{}@x", "a".repeat(300)).parse::<Address>().is_err());
    }
}
