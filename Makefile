# Two commands do everything: `make fit` and `make test`. The rest is CMake's presets and tools/setup.
PRESET ?= release
BUILD := $(if $(filter release,$(PRESET)),build,build-$(PRESET))
PRECISION ?= bf16-mixed
SETUP := tools/setup $(if $(filter cuda,$(PRESET)),--cuda)
# Side by side as ctest's: most of a comparison's time is one thread's, or a program's that starts.
PYTEST = OMP_WAIT_POLICY=PASSIVE MANTISSA_CACHE_DIR=$(KERNEL_CACHE) MANTISSA_BUILD=$(CURDIR)/$(BUILD) .deps/peers/bin/python -m pytest -n auto --maxprocesses 4 --dist loadgroup
KERNEL_CACHE := $(CURDIR)/build-$(PRESET)/kernel-cache
OPTIONS := $(if $(TORCH_ROOT),-DTORCH_ROOT=$(TORCH_ROOT)) $(CMAKE_ARGS)

.PHONY: all configure fit test package newer parity bench fuzz tsan lint format clean

all: configure
	cmake --build --preset $(PRESET)

# CMake looks at its own inputs when it builds; a configure is needed once, or when options are given.
configure:
	@$(SETUP)
	@if [ -n "$(strip $(OPTIONS))" ] || ! [ -f $(BUILD)/build.ninja ]; then cmake --preset $(PRESET) $(OPTIONS); fi

fit: configure
	cmake --build --preset $(PRESET) --target mantissa mantissa_printed
	$(BUILD)/mantissa fit --precision $(PRECISION) $(ARGS)

# What the tests' processes compute with is measured once, before them: they compare bits with each other.
test: all
	@MANTISSA_CACHE_DIR=$(KERNEL_CACHE) $(BUILD)/mantissa modes --kernels >/dev/null
	ctest --preset $(PRESET) --parallel $$(nproc)
	@tools/skipped_tests $(BUILD)/Testing/Temporary/LastTest.log

# What a machine with a GPU and PyTorch, and nothing else, needs to run: see docs/gpu.md. It is checked beside the PyTorch of
# TORCH_ROOT, else that of the parity suite, with which it is rehearsed, too.
PACKAGE := build-cuda/mantissa-cuda.tar.xz
PEERS_TORCH := $(wildcard .deps/peers/lib/python3*/site-packages/torch)
package:
	@TORCH_ROOT= tools/setup --nvcc
	@[ -f build-cuda/build.ninja ] || cmake --preset cuda $(CMAKE_ARGS)
	cmake --build --preset cuda --target package_programs
	tools/pack build-cuda $(PACKAGE)
	tools/check_package $(PACKAGE) $(or $(TORCH_ROOT),$(and $(PEERS_TORCH),$(PEERS_TORCH) .deps/peers/bin/python),.deps/libtorch/torch)

# With the newest libtorch that is supported, whatever TORCH_ROOT names: all rooms, the program, the tests that know libtorch best.
newer:
	@TORCH_ROOT= tools/setup --newer
	@[ -f build-newer/build.ninja ] || cmake --preset newer $(CMAKE_ARGS)
	cmake --build --preset newer
	ctest --preset newer --parallel $$(nproc)

parity: configure
	@$(SETUP) --peers
	cmake --build --preset $(PRESET) --target mantissa mantissa_kernels_python parity_runners
	$(PYTEST) tests/parity
	$(PYTEST) tests/python
	MANTISSA_KERNELS=avx2 $(PYTEST) tests/python -m products
	MANTISSA_KERNELS=generic $(PYTEST) tests/python -m products

bench: configure
	@$(SETUP) --peers --bench
	cmake --preset $(PRESET) -DMANTISSA_BENCH=ON $(OPTIONS)
	cmake --build --preset $(PRESET) --target mantissa_kernels_python parity_runner benchmarks
	$(BUILD)/amp_bench --benchmark_out=$(BUILD)/amp_bench.json
	$(BUILD)/kernels_bench --benchmark_out=$(BUILD)/kernels_bench.json
	$(BUILD)/trainer_bench --benchmark_out=$(BUILD)/trainer_bench.json
	$(BUILD)/quant_bench --benchmark_out=$(BUILD)/quant_bench.json
	$(BUILD)/optim_bench --benchmark_out=$(BUILD)/optim_bench.json
	$(BUILD)/precision_step_bench --benchmark_out=$(BUILD)/precision_step_bench.json
	$(BUILD)/peak_memory_bench
	$(BUILD)/saved_activations_bench
	$(BUILD)/replay_point_bench
	.deps/peers/bin/python benchmarks/train_step.py --build $(BUILD)
	.deps/peers/bin/python benchmarks/trainer_cost.py --build $(BUILD)
	.deps/peers/bin/python benchmarks/busy_machine.py --build $(BUILD)
	.deps/peers/bin/python benchmarks/data_loader.py --build $(BUILD)
	.deps/peers/bin/python benchmarks/tokens.py --build $(BUILD)
	.deps/peers/bin/python benchmarks/images.py --build $(BUILD)
	.deps/peers/bin/python benchmarks/python_models.py --build $(BUILD)
	.deps/peers/bin/python benchmarks/python_models.py --build $(BUILD) --ordinary-cpu
	.deps/peers/bin/python benchmarks/low_bit_products.py --build $(BUILD)
	.deps/peers/bin/python benchmarks/low_bit_products.py --build $(BUILD) --ordinary-cpu
	.deps/peers/bin/python benchmarks/eight_bit_optimizers.py --build $(BUILD)
	.deps/peers/bin/python benchmarks/eight_bit_optimizers.py --build $(BUILD) --ordinary-cpu
	.deps/peers/bin/python benchmarks/low_bit_table.py --build $(BUILD)

# Each target for FUZZ_SECONDS, 600 if unset: see tools/fuzz.
fuzz:
	@$(SETUP) --fuzz
	@[ -f build-fuzz/build.ninja ] || cmake --preset fuzz $(OPTIONS)
	cmake --build --preset fuzz
	tools/fuzz

# What makes threads of its own, under ThreadSanitizer.
tsan:
	@$(SETUP)
	@[ -f build-tsan/build.ninja ] || cmake --preset tsan $(OPTIONS)
	cmake --build --preset tsan
	ctest --preset tsan --parallel $$(nproc)

lint:
	@$(SETUP) --lint --bench
	tools/lint

format:
	@$(SETUP) --lint
	git ls-files '*.h' '*.cpp' | xargs clang-format -i

clean:
	rm -rf build build-*
