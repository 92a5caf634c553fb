// Benchmarks of the host's work for a kernel: keys and look-ups, encoding, submitting, and loading a kernel from disk
// or from an archive. A look-up should take less than 200 ns if the kernel is in memory, and less than 1 ms if the
// kernel is on disk. An empty dispatch should take some microseconds.
#include <benchmark/benchmark.h>

#include <string>

#include "common/base/temporary_folder.h"
#include "common/device/device.h"
#include "common/device/pipeline_cache.h"

namespace attn {
namespace {

// Returns an empty kernel with as many constants as the attention kernels have.
KernelSource source() {
  const std::string path = "bench/kernel.cpu.cpp";
  std::string body =
      "#include \"common/attention/kernels/softmax.h\"\nstatic_assert(HEAD_DIM + CAUSAL + IN_TYPE + OUT_TYPE";
  body += " + BLOCK_R + BLOCK_C + VECTOR_WIDTH + TILE_VECTORS + TILE_ROWS + BF16_DOT + COPY_K + ASK_AHEAD > 0);\n";
  body += "extern \"C\" void empty_kernel(const void*, const Threadgroup*) {}\n";
  return {path,
          "empty_kernel",
          {{"HEAD_DIM", 128},
           {"CAUSAL", 1},
           {"IN_TYPE", 2},
           {"OUT_TYPE", 0},
           {"BLOCK_R", 64},
           {"BLOCK_C", 64},
           {"VECTOR_WIDTH", 16},
           {"TILE_VECTORS", 2},
           {"TILE_ROWS", 6},
           {"BF16_DOT", 1},
           {"COPY_K", 0},
           {"ASK_AHEAD", 0}},
          {{path, body}}};
}

// Returns a kernel of the source tree. The host must read this kernel's files.
KernelSource source_on_disk() {
  KernelSource on_disk = source();
  on_disk.path = "common/attention/kernels/tuned.cpu.cpp";
  on_disk.includes.clear();
  return on_disk;
}

Device& device() {
  static const std::unique_ptr<Device> cpu = Device::open("cpu");
  return *cpu;
}

PipelineCache& pipelines() {
  static PipelineCache cache(device(), "");
  return cache;
}

struct Parameters {
  void* pointers[6];
  long long sizes[16];
};

void kernel_source_key(benchmark::State& state) {
  const KernelSource wanted = source_on_disk();
  for (auto _ : state) benchmark::DoNotOptimize(wanted.key());
}
BENCHMARK(kernel_source_key);

void source_hash(benchmark::State& state) {
  const KernelSource wanted = source_on_disk();
  for (auto _ : state) benchmark::DoNotOptimize(source_sha256(wanted));
}
BENCHMARK(source_hash)->Unit(benchmark::kMicrosecond);

void kernel_source_hash(benchmark::State& state) {
  const KernelSource wanted = source_on_disk();
  for (auto _ : state) benchmark::DoNotOptimize(KernelSourceHash()(wanted));
}
BENCHMARK(kernel_source_hash);

// Looks a kernel up among state.range(0) kernels, as a long sweep does.
void pipeline_memory_hit(benchmark::State& state) {
  PipelineCache& cache = pipelines();
  KernelSource wanted = source();
  for (int64_t i = 0; i < state.range(0); ++i) {
    wanted.constants["BLOCK_R"] = 64 + i;
    cache.get(wanted);
  }
  for (auto _ : state) benchmark::DoNotOptimize(&cache.get(wanted));
}
BENCHMARK(pipeline_memory_hit)->Arg(1)->Arg(100);

void pipeline_memory_hit_by_threads(benchmark::State& state) {
  PipelineCache& cache = pipelines();
  KernelSource wanted = source();
  wanted.constants["BLOCK_R"] = 64 + state.thread_index();
  cache.get(wanted);
  for (auto _ : state) benchmark::DoNotOptimize(&cache.get(wanted));
}
BENCHMARK(pipeline_memory_hit_by_threads)->Threads(2)->UseRealTime();

void pipeline_compile(benchmark::State& state) {
  for (auto _ : state) {
    PipelineCache cache(device(), "");
    benchmark::DoNotOptimize(&cache.get(source()));
  }
}
BENCHMARK(pipeline_compile)->Unit(benchmark::kMillisecond);

void binary_load(benchmark::State& state) {
  const Binary binary = device().compile(source());
  for (auto _ : state) benchmark::DoNotOptimize(device().load(binary, "empty_kernel"));
}
BENCHMARK(binary_load)->Unit(benchmark::kMicrosecond);

// Loads the kernel of proto1_flash, which has one of the largest object files.
void pipeline_disk_load_tuned(benchmark::State& state) {
  const TemporaryFolder folder;
  KernelSource wanted = source_on_disk();
  wanted.entry = "flash_forward";
  wanted.constants["VECTOR_WIDTH"] = device().info().simd_width;
  wanted.constants["IN_TYPE"] = wanted.constants["BF16_DOT"] = 0;
  PipelineCache(device(), folder.path()).get(wanted);
  for (auto _ : state) {
    PipelineCache cache(device(), folder.path());
    if (cache.get(wanted).origin != "disk") state.SkipWithError("the kernel did not come from disk");
  }
}
BENCHMARK(pipeline_disk_load_tuned)->Unit(benchmark::kMicrosecond);

// Loads an archive of state.range(0) kernels.
void archive_load(benchmark::State& state) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "archive";
  PipelineArchive archive;
  Binary binary = device().compile(source());
  for (int64_t i = 0; i < state.range(0); ++i) archive.add(std::to_string(i), binary);
  archive.save(path);
  for (auto _ : state) benchmark::DoNotOptimize(PipelineArchive::load(path).size());
}
BENCHMARK(archive_load)->Arg(72)->Unit(benchmark::kMicrosecond);

void pipeline_disk_load(benchmark::State& state) {
  const TemporaryFolder folder;
  const KernelSource wanted = source();
  PipelineCache(device(), folder.path()).get(wanted);
  for (auto _ : state) {
    PipelineCache cache(device(), folder.path());
    if (cache.get(wanted).origin != "disk") state.SkipWithError("the kernel did not come from disk");
  }
}
BENCHMARK(pipeline_disk_load)->Unit(benchmark::kMicrosecond);

void encode_dispatch(benchmark::State& state) {
  const Kernel& kernel = *pipelines().get(source()).kernel;
  const Parameters parameters = {};
  for (auto _ : state) {
    CommandEncoder encoder;
    encoder.dispatch(kernel, {1, 1, 1}, 1, 0, parameters);
    benchmark::DoNotOptimize(encoder.commands().data());
  }
}
BENCHMARK(encode_dispatch);

// Submits state.range(0) dispatches at once. Each dispatch has an empty grid. The slope of the time over the number of
// dispatches is the time of a dispatch.
void submit_empty(benchmark::State& state) {
  const Kernel& kernel = *pipelines().get(source()).kernel;
  CommandEncoder encoder;
  for (int64_t i = 0; i < state.range(0); ++i) encoder.dispatch(kernel, {0, 1, 1}, 1, 0, Parameters());
  for (auto _ : state) device().submit(encoder);
}
BENCHMARK(submit_empty)->Arg(0)->Arg(1)->Arg(100)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace attn
