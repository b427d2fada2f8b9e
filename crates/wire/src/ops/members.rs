//! Messages by which nodes watch each other.

use bivouac_types::{Liveness, MembershipUpdate, NodeId};

use crate::{Decode, DecodeError, Encode, Reader};

impl Encode for Liveness {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl Decode<'_> for Liveness {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Liveness::from_number(u8::decode(input)?).ok_or(DecodeError::Invalid("liveness"))
    }
}

codec_struct!(MembershipUpdate { node, incarnation, liveness });

owned! {
    /// Updates of a node about others and itself.
    NewsList {
        /// The news.
        news: Vec<MembershipUpdate>,
    }
    /// A node that is to be probed for another, or was.
    ProbeForRequest {
        /// The node.
        target: NodeId,
        /// News that are sent along.
        news: Vec<MembershipUpdate>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let news = vec![MembershipUpdate { node: NodeId(0x0102), incarnation: 3, liveness: Liveness::Dead }];
        let request = ProbeForRequest { target: NodeId(7), news };
        let bytes = [7, 0, 1, 0, 0, 0, 2, 1, 3, 0, 0, 0, 2];
        assert_eq!(request.to_bytes(), bytes);
        assert_eq!(ProbeForRequest::from_bytes(&bytes), Ok(request));
        let mut alien = bytes;
        alien[12] = 3;
        assert_eq!(ProbeForRequest::from_bytes(&alien), Err(DecodeError::Invalid("liveness")));
    }
}
