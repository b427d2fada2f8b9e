# What a newcomer types. Each target installs what is missing, and says so before it does.

.PHONY: help demo test static dist packages try-deb release

help:
	@echo 'make demo   a formation of four nodes on this machine, with real data'
	@echo 'make test   everything that has to hold, in one run'
	@echo 'make static one binary without libraries, to be sent to any host'
	@echo 'make dist   an archive with that binary, manual pages and completions'
	@echo 'make packages  the archives, a deb and an rpm, each tried'
	@echo 'make try-deb   installs that deb in a root of its own and runs the main job there; as root'
	@echo 'make release   all of these of what is committed, with sums and what they need'

demo:
	@scripts/setup demo
	@scripts/demo

test:
	@scripts/test

static:
	@scripts/static

dist:
	@scripts/dist

packages:
	@scripts/packages

try-deb: packages
	@scripts/try-deb "$$(ls -t target/dist/bivouac_*.deb | head -n 1)"

release:
	@scripts/release
