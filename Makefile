# make train   set up .venv (first time only) and train PSDRL on Pong; make train ENV=deepsea-10 trains on another
#              environment or game, ARGS="--steps 20000" passes flags through
# make quick   tests/unit: pure tests, under a minute on two cores
# make test    ruff, mypy and all tests but the slow ones (what .ci/run calls), under 10 minutes with the set-up
# make slow    the slow tests; each has a short version in make test
# make crash   50 kills of training processes at random moments, saves included: resumed, they equal undisturbed runs bit
#              for bit (some 20 minutes); a short version is in make test
# make soak    memory and open files over 300 updates
# make sanitize   the C++ part under AddressSanitizer and UndefinedBehaviourSanitizer
# make learn   does it learn? DeepSea, also from images, CartPole, MinAtar Breakout, Freeway and Space Invaders, Atari
#              Freeway into results/, then figures and table; what is there is not run again: make learn RESULTS=DIRECTORY
#              runs all of it (some 30 minutes on two idle cores, going by the minutes of its runs)
# make cuda-check   the CUDA build of torch, Triton, Inductor and our extension on two hollow GPUs: no GPU is needed, and no
#              value is computed (tests/hollow/README.md). The first time it makes CUDA_VENV (.cuda-venv, some 8 GB) with
#              PYTHON312 (python3.12: for this version torch 2.13.0 is a CUDA build); needs nvcc and gcc. About 8
#              minutes on two idle cores; CUDA_ARGS=--short takes four and does not write docs/cuda-check.md
# make docs    the documentation as a site in build/site, in strict mode: a broken link is an error
# make bench   the benchmark suites and the phase table (half an hour, on an idle machine)
GAME ?= Pong
ENV ?= $(GAME)
ARGS ?=
RESULTS ?= results
EQUAL_STEPS ?= 20000
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CUDA_VENV ?= .cuda-venv
PYTHON312 ?= python3.12
CUDA_ARGS ?= --out docs/cuda-check.md

.PHONY: train quick test slow crash soak learn bench docs sanitize cuda-check clean
train: $(READY)
	$(BIN)/psdrl train $(ENV) $(ARGS)

quick: $(READY)
	$(BIN)/python -m pytest -n auto tests/unit

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docs/hooks/*.py
	$(BIN)/python -m pytest -n auto -m "not slow"

slow: $(READY)
	$(BIN)/python -m pytest -n auto -m slow

crash: $(READY)
	$(BIN)/python -m tests.crash --kills 50

soak: $(READY)
	$(BIN)/python -m tests.soak

bench: $(READY)
	$(BIN)/python -m pytest bench --benchmark-enable --benchmark-only -s --benchmark-group-by=group --benchmark-columns=min,mean,rounds
	$(BIN)/python -m bench.phases --preset paper
	$(BIN)/python -m bench.phases --preset cpu

learn: $(READY)
	$(BIN)/python -m psdrl.experiments.learn --jobs 2 --results $(RESULTS)
	$(BIN)/psdrl report $(RESULTS) --out build/report
	cp build/report/TABLE.md build/report/sheets/*.png $(RESULTS)/
	$(BIN)/psdrl report $(RESULTS) --steps $(EQUAL_STEPS) --out build/equal
	cp build/equal/SIDE_BY_SIDE.md build/equal/figures/side-by-side.png $(RESULTS)/

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Read it: build/site/index.html; its search needs a server: python3 -m http.server -d build/site"

sanitize: $(READY)
	PYTHON=$(BIN)/python sh tests/host/sanitize.sh

# Under a lock: a second check, perhaps of another checkout, would change the sources beneath the first.
cuda-check:
	mkdir -p $(CUDA_VENV)
	flock --nonblock $(CUDA_VENV)/.lock sh -c 'tests/hollow/venv.sh $(CUDA_VENV) $(PYTHON312) && $(CUDA_VENV)/bin/python -m tests.hollow.check --venv $(CUDA_VENV) $(CUDA_ARGS)' || \
	{ echo "cuda-check failed, or another one is using $(CUDA_VENV)."; exit 1; }

# torch first and no build isolation: setup.py compiles the extension against the torch that will load it.
$(READY): pyproject.toml setup.py $(wildcard csrc/*.*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "setuptools>=77" wheel ninja
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-build-isolation -e ".[dev]"
	touch $@

clean:
	rm -rf .venv .cuda-venv build *.egg-info psdrl/*.so
