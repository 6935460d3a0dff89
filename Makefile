# Two commands do everything: `make fit` and `make test`. The rest is CMake's presets and tools/setup.
PRESET ?= release
BUILD := $(if $(filter release,$(PRESET)),build,build-$(PRESET))
PRECISION ?= bf16-mixed
SETUP := $(if $(filter cuda,$(PRESET)),--cuda)
CMAKE_ARGS += $(if $(TORCH_ROOT),-DTORCH_ROOT=$(TORCH_ROOT))

.PHONY: all setup configure fit test parity bench lint format clean

all: configure
	cmake --build --preset $(PRESET)

setup:
	@tools/setup $(SETUP)

# CMake looks at its own inputs when it builds; a configure is needed once, or when options are given.
configure: setup
	$(if $(CMAKE_ARGS),cmake --preset $(PRESET) $(CMAKE_ARGS),@test -f $(BUILD)/build.ninja || cmake --preset $(PRESET))

fit: configure
	cmake --build --preset $(PRESET) --target mantissa
	$(BUILD)/mantissa fit --precision $(PRECISION) $(ARGS)

test: all
	ctest --preset $(PRESET) --parallel $$(nproc)

parity: SETUP += --peers
parity: configure
	cmake --build --preset $(PRESET) --target mantissa parity_runner
	MANTISSA_BUILD=$(CURDIR)/$(BUILD) .deps/peers/bin/python -m pytest tests/parity

bench: SETUP += --bench --peers
bench: CMAKE_ARGS += -DMANTISSA_BENCH=ON
bench: configure
	cmake --build --preset $(PRESET) --target parity_runner benchmarks
	$(BUILD)/amp_bench
	.deps/peers/bin/python benchmarks/train_step.py --build $(BUILD)

lint: SETUP += --lint
lint: setup
	tools/lint

format: SETUP += --lint
format: setup
	git ls-files '*.h' '*.cpp' | xargs clang-format -i

clean:
	rm -rf build build-*
