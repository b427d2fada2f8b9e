//! Races: reported accesses taken in, and what was found told.

use bivouac_types::{Errno, FsError, FsResult, RaceCounts};
use bivouac_wire::{ListRacesRequest, RacePage, ReportAccessesRequest, op};

use crate::node::Node;
use crate::session::Ctx;
use crate::step::Handle;

impl Handle for op::ReportAccesses {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ReportAccessesRequest) -> FsResult<()> {
        let served_by = ctx.client.mounted_through(node.map.formation);
        let Some(races) = &node.races else { return Err(undetected(node)) };
        races.report(ctx.client, served_by, request);
        Ok(())
    }
}

impl Handle for op::ListRaces {
    fn handle(node: &Node, _: &Ctx<'_>, request: ListRacesRequest) -> FsResult<RacePage> {
        if !node.map.detects_races {
            return Err(undetected(node));
        }
        if request.from == 0 {
            node.served.page_pools().iter().for_each(|pool| pool.report_accesses());
        }
        let nothing = || RacePage {
            since_ms: 0,
            is_resumed: false,
            counts: RaceCounts::default(),
            races: Vec::new(),
            next: None,
        };
        Ok(node.races.as_ref().map_or_else(nothing, |races| races.list(request.from)))
    }
}

fn undetected(node: &Node) -> FsError {
    let text = format!("{} detects no races: start the formation with --detect-races", node.id);
    FsError::with(Errno::EOPNOTSUPP, text)
}
