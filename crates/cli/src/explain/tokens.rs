//! Range tokens of a file under the strict contract: which clients have which bytes, and who waits for some.

use bivouac_client::{Client, Partition};
use bivouac_types::{Attr, ByteRange, ClientId, Contract, FormationId, TokenMode};
use bivouac_wire::ClientToken;
use serde::Serialize;

use crate::table::layout;

/// Tokens that clients have, and requests that wait.
#[derive(Debug, Serialize)]
pub struct TokensExplanation {
    /// Number of tokens, all of which need not be listed.
    held_count: u32,
    held: Vec<TokenExplanation>,
    /// Number of requests, all of which need not be listed.
    waiting_count: u32,
    /// Waiting requests, in order.
    waiting: Vec<TokenExplanation>,
    /// Reason why the home of the file does not say them.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct TokenExplanation {
    client: String,
    /// The node whose daemon serves the mount, of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u16>,
    mode: &'static str,
    start: u64,
    /// Behind the last byte; none up to whatever end the file gets.
    end: Option<u64>,
}

impl TokensExplanation {
    /// Returns the tokens of a file that is strict, as its home says.
    pub fn of(client: &Client, attr: &Attr, partition: Option<&Partition>) -> Option<TokensExplanation> {
        let of_partition = partition.map_or(Contract::default(), |partition| partition.settings.contract);
        if !attr.is_file() || attr.contract.unwrap_or(of_partition) != Contract::Strict {
            return None;
        }
        let formation = client.map().formation;
        Some(match client.tokens.list(attr.ino) {
            Ok(list) => TokensExplanation {
                held_count: list.held_count,
                held: list.held.iter().map(|one| TokenExplanation::of(one, formation)).collect(),
                waiting_count: list.waiting_count,
                waiting: list.waiting.iter().map(|one| TokenExplanation::of(one, formation)).collect(),
                error: None,
            },
            Err(error) => {
                let error = Some(error.to_string());
                TokensExplanation { held_count: 0, held: vec![], waiting_count: 0, waiting: vec![], error }
            }
        })
    }

    /// Returns it in the form for people.
    pub fn to_text(&self) -> String {
        if let Some(error) = &self.error {
            return format!("tokens: not known ({error})\n");
        }
        if self.held_count == 0 && self.waiting_count == 0 {
            return "tokens: none; nobody reads or writes it now\n".to_owned();
        }
        let shown = |count: u32, rows: &[TokenExplanation]| match usize::try_from(count) {
            Ok(count) if count > rows.len() => format!(", the first {}", rows.len()),
            _ => String::new(),
        };
        let held = self.held.iter().map(|one| one.row("has"));
        let rows: Vec<Vec<String>> = held.chain(self.waiting.iter().map(|one| one.row("waits"))).collect();
        format!(
            "tokens: {} of clients{}; {} requests wait{}\n{}",
            self.held_count,
            shown(self.held_count, &self.held),
            self.waiting_count,
            shown(self.waiting_count, &self.waiting),
            layout(&["CLIENT", "", "TO", "FROM BYTE", "TO BYTE"], &[3, 4], &rows)
        )
    }
}

impl TokenExplanation {
    fn of(token: &ClientToken, formation: FormationId) -> TokenExplanation {
        let ClientToken { client: ClientId(number), mode, range: ByteRange { start, end } } = *token;
        TokenExplanation {
            client: format!("{number:016x}"),
            node: token.client.mounted_through(formation).map(|node| node.0),
            mode: if mode == TokenMode::Write { "write" } else { "read" },
            start,
            end: (end != u64::MAX).then_some(end),
        }
    }

    fn row(&self, verb: &str) -> Vec<String> {
        let client = match self.node {
            Some(node) => format!("mount of node {node}"),
            None => format!("program with the library, {}", self.client),
        };
        let end = self.end.map_or_else(|| "end".to_owned(), |end| end.to_string());
        vec![client, verb.to_owned(), self.mode.to_owned(), self.start.to_string(), end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S793.
    #[test]
    fn tokens_are_shown_with_who_has_them_and_who_waits() {
        let token = |node: Option<u16>, mode, range: (u64, Option<u64>)| TokenExplanation {
            client: "00000000000000ab".into(),
            node,
            mode,
            start: range.0,
            end: range.1,
        };
        let mut tokens = TokensExplanation {
            held_count: 70,
            held: vec![token(Some(2), "write", (4096, None))],
            waiting_count: 1,
            waiting: vec![token(None, "read", (0, Some(8192)))],
            error: None,
        };
        let text = tokens.to_text();
        assert!(text.starts_with("tokens: 70 of clients, the first 1; 1 requests wait\n"), "{text}");
        assert!(text.contains("mount of node 2"), "{text}");
        assert!(text.contains("program with the library, 00000000000000ab  waits  read"), "{text}");
        (tokens.held_count, tokens.waiting_count) = (0, 0);
        assert!(tokens.to_text().contains("none; nobody reads or writes"));
        tokens.error = Some("away".into());
        assert_eq!(tokens.to_text(), "tokens: not known (away)\n");
    }
}
