//! The options of `metrics`.

use clap::{Args, ValueEnum};

use super::NameArgs;

/// Arguments of `metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// The form: OpenMetrics 1.0, or the text of Prometheus 0.0.4, which node_exporter takes from files
    #[arg(long, value_name = "FORM", value_enum, default_value_t = MetricsForm::Openmetrics)]
    pub format: MetricsForm,
}

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetricsForm {
    /// OpenMetrics 1.0
    Openmetrics,
    /// Prometheus text 0.0.4
    Prometheus,
}
