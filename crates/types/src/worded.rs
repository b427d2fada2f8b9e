//! Enumerations whose values are written as words.

/// Defines enumerations whose values are written as words: in settings, on command lines, in databases and in JSON.
#[macro_export]
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$($name::$variant),*];
            /// Their words.
            pub const WORDS: &[&str] = &[$($word),*];

            /// Returns its word.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                match text {
                    $($word => Ok($name::$variant),)*
                    _ => Err(format!("{} '{text}' is none of {}", $what, $name::WORDS.join(", "))),
                }
            }
        }
    )*};
}
