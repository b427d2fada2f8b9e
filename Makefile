# What a newcomer types. Each target installs what is missing, and says so before it does.

.PHONY: help demo test static dist packages

help:
	@echo 'make demo   a formation of four nodes on this machine, with real data'
	@echo 'make test   everything that has to hold, in one run'
	@echo 'make static one binary without libraries, to be sent to any host'
	@echo 'make dist   an archive with that binary, manual pages and completions'
	@echo 'make packages  the archive, a deb and an rpm, each tried'

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
