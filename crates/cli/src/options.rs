//! The one table of commands and options: parser, help, manual pages and completions come from it.

mod commands;
mod contract;
mod doctor;
mod durations;
mod examples;
mod files;
mod formation;
mod groups;
mod hosts;
mod internal;
mod key;
mod link;
mod logs;
mod metrics;
mod mistakes;
mod mount;
mod numbers;
mod partition;
mod plan;
mod pool;
mod publish;
mod report;
mod run;
mod running;
mod shell;
mod slots;
mod stage;
mod system;
#[cfg(test)]
mod tests;
mod top;
mod up;

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{FromArgMatches, Parser, Subcommand};

pub use commands::Command;
pub use contract::{ContractArgs, ContractCommand, ContractSetArgs, ContractShowArgs, LaminateArgs};
pub use doctor::DoctorArgs;
pub use durations::Duration;
use durations::{duration, interval, round};
pub use examples::command;
pub use files::{FlushArgs, FsckArgs, PinArgs, RacesArgs, ScrubArgs};
pub use formation::FormationArgs;
pub use hosts::{AgainArgs, HostsArgs, Topology};
pub use internal::{EndArgs, InternalCommand, JoinArgs, SuperviseArgs};
pub use key::{KeyAction, KeyArgs, KeyCreateArgs, KeyListArgs, KeyRevokeArgs};
pub use link::{
    LinkAddArgs, LinkArgs, LinkCommand, LinkListArgs, LinkListenArgs, LinkRemoveArgs, LinkShowArgs,
};
pub use logs::{LogLevel, LogsArgs};
pub use metrics::MetricsArgs;
pub use mistakes::{hint, wants_json};
pub use mount::{ExplainArgs, MountArgs, UnmountArgs};
pub use partition::{
    CreateArgs, ListArgs, PartitionArgs, PartitionCommand, PathArgs, RemoveArgs, SetArgs, ShowArgs,
};
pub use plan::{CalibrateArgs, PlanAction, PlanArgs, SiteArgs};
pub use pool::{
    AttachArgs, DatabaseArgs, PoolArchiveArgs, PoolArgs, PoolChangeArgs, PoolCommand, PoolCreateArgs,
    PoolDetachArgs, PoolExpireArgs, PoolIcalArgs, PoolPathArgs, PoolRemindArgs, PoolReminderArgs,
    PoolShareArgs, ReminderArgs,
};
pub use publish::{
    CatalogueArgs, FindArgs, GetArgs, KeyFileArgs, NearArgs, PublishArgs, ShareArgs, UnpublishArgs,
};
pub use report::ReportArgs;
pub use run::{ExecArgs, PreloadArgs, RunArgs};
pub use running::{
    DownArgs, GrowArgs, ListAllArgs, MountPathArgs, NameArgs, ReapArgs, RecoverArgs, ShrinkArgs, StatusArgs,
    WhichArgs,
};
pub use shell::{CompletionsArgs, ManArgs};
pub use slots::{
    PoolAnnounceArgs, PoolBeginArgs, PoolSlotArgs, PoolSlotsArgs, PoolStageAction, PoolStageArgs,
    PoolStorageArgs, SlotArgs,
};
pub use stage::{
    StageAction, StageArgs, StageCopyArgs, StageHowArgs, StageOutArgs, StageResumeArgs, StageStatusArgs,
    TalkArgs,
};
pub use system::{MapFormat, SystemArgs, TellArgs, WhoseArgs};
pub use top::TopArgs;
pub use up::{ConfigArgs, FileArgs, FileKeyArgs, PlaceArgs, UpArgs};

/// An ad-hoc parallel file system out of the nodes that a job already has.
#[derive(Debug, Parser)]
#[command(name = "bivouac", version, about, max_term_width = 100, subcommand_required = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Parser)]
struct InternalCli {
    #[command(subcommand)]
    command: InternalCommand,
}

impl Cli {
    /// What the arguments say. The parser of all commands takes longer to make than a daemon to start, so those that
    /// are started by hundreds do without; it also says what is wrong with theirs.
    ///
    /// # Errors
    /// What makes no sense in them, or the help that was asked for.
    pub fn read(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
        let name = arguments.get(1).and_then(|name| name.to_str());
        if name.is_some_and(InternalCommand::has_subcommand)
            && let Ok(InternalCli { command }) = InternalCli::try_parse_from(&arguments)
        {
            return Ok(Cli { command: Command::InternalCommand(command) });
        }
        // Before the parser: the value may be none that a name can have, and the parser would only say that.
        if let Some(value) = mistakes::value_taken_for_a_name(&arguments) {
            let text = format!("unexpected argument '{value}' found\n");
            return Err(clap::Error::raw(ErrorKind::UnknownArgument, text));
        }
        let mut matches = command().try_get_matches_from(&arguments)?;
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command()))
    }
}
