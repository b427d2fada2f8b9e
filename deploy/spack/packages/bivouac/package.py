import os

from spack.package import *

try:
    # Where Spack 1.0 and later have it.
    from spack_repo.builtin.build_systems.generic import Package
except ImportError:
    pass


class Bivouac(Package):
    """The nodes of a running job as its own parallel file system."""

    # There is no release to download: build it from a clone, by spack dev-build.
    manual_download = True

    license("Apache-2.0")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.92:", type="build")
    # To mount as an ordinary user; setuid, so often the system's own (an external).
    depends_on("libfuse@3:", type="run")

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        packages = ["bivouac-cli", "bivouac-preload", "bivouac-capi"]
        cargo("build", "--release", "--locked", *[word for name in packages for word in ("--package", name)])
        built = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release")
        mkdirp(prefix.bin, prefix.share.man.man1)
        for program in ["bivouac", "bivouac-bench"]:
            install(os.path.join(built, program), prefix.bin)
        Executable(os.path.join("scripts", "install-preload"))(built, prefix)
        Executable(os.path.join("scripts", "install-library"))(built, prefix)
        Executable(os.path.join(prefix.bin, "bivouac"))("man", prefix.share.man.man1)
