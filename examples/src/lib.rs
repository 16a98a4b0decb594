//! Examples of windowpane, one idea per file; the files are in the parent folder.
//!
//! The guide in `docs/guide` belongs to this crate too, so that its snippets are compiled and run.

/// The pages of the guide, by their names.
macro_rules! guide {
    ($($page:ident $file:literal),* $(,)?) => {
        /// The pages whose snippets are compiled and run.
        pub const PAGES: &[&str] = &[$($file),*];

        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!("../../docs/guide/", $file))]
            struct $page;
        )*
    };
}

guide! {
    GettingStarted "getting-started.md",
    Layouts "layouts.md",
    Backends "backends.md",
    Devices "devices.md",
    Types "types.md",
    Pooling "pooling.md",
    Convolution "convolution.md",
    Gradients "gradients.md",
    ComingFrom "coming-from.md",
    Tuning "tuning.md",
    Frameworks "frameworks.md",
    Kernels "kernels.md",
}
