//! The state of a pool, and the location of its data.

use serde::Serialize;

bivouac_types::words! {
    /// The stage of a pool's life.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    PoolState ("state") {
        /// In use.
        Live = "live",
        /// Its owner gave it up; it can be restored.
        Released = "released",
        /// Its time is over; it can be restored.
        Expired = "expired",
        /// Its data is being removed.
        Removing = "removing",
        /// Its data is gone, if it was made for the pool; only its history is left.
        Removed = "removed",
    }
    /// Location of a pool's data.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    Location ("location") {
        /// Site storage.
        Site = "site",
        /// In use, with an earlier state in an archive.
        Both = "both",
        /// An archive only.
        Archive = "archive",
    }
}
