//! The options of `metrics`.

use bivouac_monitor::MetricsFormat;
use clap::{Args, ValueEnum};

use super::WhichArgs;

/// Arguments of `metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// The form: OpenMetrics 1.0, or the text of Prometheus 0.0.4, which node_exporter takes from files
    #[arg(long, value_name = "FORM", value_enum, default_value_t = MetricsFormatArg::Openmetrics)]
    pub format: MetricsFormatArg,
}

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetricsFormatArg {
    /// OpenMetrics 1.0
    Openmetrics,
    /// Prometheus text 0.0.4
    Prometheus,
}

impl From<MetricsFormatArg> for MetricsFormat {
    fn from(form: MetricsFormatArg) -> MetricsFormat {
        match form {
            MetricsFormatArg::Openmetrics => MetricsFormat::Openmetrics,
            MetricsFormatArg::Prometheus => MetricsFormat::Prometheus,
        }
    }
}
