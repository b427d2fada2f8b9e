//! Identity of a changing operation.

use bivouac_types::OpId;

/// Identity of one changing operation, so that it happens once however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpCtx {
    /// Unique within the client and channel.
    pub id: OpId,
    /// Channel, on which one operation is under way at a time.
    pub channel: u16,
    /// Set if it was sent before, by this process or an earlier one of this client, and may have been carried out.
    pub retry: bool,
    /// Owner of what is made.
    pub uid: u32,
    /// Group of what is made.
    pub gid: u32,
    /// The process that asks.
    pub pid: u32,
}

impl OpCtx {
    /// Returns the identity of a further change of the same operation, `turn` from 1 on: the result of one must not
    /// answer the retransmission of another.
    pub(crate) fn further(&self, turn: u64) -> OpCtx {
        OpCtx { id: OpId(self.id.0 ^ turn << 48), ..*self }
    }

    /// Returns `send` as a closure to be called several times, which marks the operation as a retransmission from the
    /// second call on. An error does not say that nothing was carried out: the reply to a first transmission may have
    /// been lost with its connection, and the error may be that of the retransmission, which found no space while
    /// the first one was unfinished.
    pub(crate) fn repeatable<T>(&self, mut send: impl FnMut(&OpCtx) -> T) -> impl FnMut() -> T {
        let mut ctx = *self;
        move || {
            let answer = send(&ctx);
            ctx.retry = true;
            answer
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_again_is_marked() {
        let ctx = OpCtx { id: OpId(7), channel: 1, retry: false, uid: 0, gid: 0, pid: 0 };
        let mut send = ctx.repeatable(|ctx| *ctx);
        assert_eq!([send(), send(), send()].map(|sent| sent.retry), [false, true, true]);
        assert_eq!(OpCtx { retry: false, ..send() }, ctx);
    }
}
