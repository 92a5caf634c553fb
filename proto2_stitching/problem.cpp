#include "proto2_stitching/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/attention/kernels/mma_sync.h"
#include "common/attention/kernels/round_up.h"
#include "common/attention/kernels/tuned.h"
#include "common/backends/cuda/wgmma_schedule.h"
#include "common/backends/metal/operations.h"
#include "common/backends/metal/table.h"
#include "common/base/divided_up.h"
#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/cases/configurations.h"
#include "common/cases/input_pool.h"
#include "common/cases/user_functions.h"
#include "proto2_stitching/kernels/forms.h"

namespace attn {
namespace {

constexpr std::array<const char*, 10> forms = {"monolithic", "inline",        "noinline",       "switch",
                                               "pointer",    "stitched",      "stitched_nolto", "std_function",
                                               "virtual",    "stitched_graph"};
static_assert(FORM_MONOLITHIC == 0 && FORM_SWITCH == 3 && FORM_STITCHED == 5 && FORM_VIRTUAL == forms.size() - 2);

int form_number(const std::string& form) {
  return static_cast<int>(std::find(forms.begin(), forms.end(), form) - forms.begin());
}

int grain_number(const std::string& grain) {
  return grain == "tile" ? SCORE_TILE : grain == "row" ? SCORE_ROW : SCORE_ELEMENT;
}

TunedLayout tuned_layout(const FlashConfig& config, const KernelSource& kernel) {
  return {config.shape.head_dim,
          config.block_r,
          config.block_c,
          kernel.constants.at("VECTOR_WIDTH"),
          kernel.constants.at("TILE_VECTORS"),
          kernel.constants.at("TILE_ROWS"),
          kernel.constants.at("BF16_DOT") != 0,
          kernel.constants.at("COPY_K") != 0};
}

int64_t score_lanes(const StitchConfig& config, const DeviceInfo& device, const KernelSource& kernel) {
  const bool row = config.grain == "row";
  if (config.flash.variant != "tuned") return config.flash.block_c / (row ? 4 : 2);
  return row ? device.simd_width : tuned_layout(config.flash, kernel).panel;
}

// call() is the plain function through which a kernel calls the std::function.
template <typename Result, typename... Parameters>
struct Callable {
  std::function<Result(Parameters...)> function;

  static Result call(const void* object, Parameters... parameters) {
    return static_cast<const Callable*>(object)->function(parameters...);
  }
};

struct HostCallable {
  void* call;
  const void* object;
};

template <typename Result, typename... Parameters>
std::shared_ptr<void> wrap(Result (*function)(Parameters...), std::vector<std::byte>& data) {
  auto callable = std::make_shared<Callable<Result, Parameters...>>();
  callable->function = function;
  data = bytes_of(HostCallable{reinterpret_cast<void*>(&Callable<Result, Parameters...>::call), callable.get()});
  return callable;
}

using ElementFunction = float(float s, int q, int k, const ScoreContext& context);
using RowFunction = void(float* s, int q, int k, const ScoreContext& context);
using TileFunction = void(float* s, int keys, int q, int k, const ScoreContext& context);

// Returns the address of score_fragment, which was compiled with `publish`. The address is valid as long as `pipelines`
// exists.
void* published_address(Device& device, PipelineCache& pipelines, KernelSource fragment) {
  fragment.entry = "publish";
  void* address = nullptr;
  CommandEncoder encoder;
  encoder.dispatch(*pipelines.get(fragment).kernel, {}, 1, 0, &address);
  device.submit(encoder);
  return address;
}

bool is_metal(const DeviceInfo& device) { return device.operations->kernel_ending == "metal"; }

// What ScoreContext::data points to in the form `pointer` on Metal; the same struct as in pointer_metal.h.
struct ScoreTable {
  int32_t choice;
  uint64_t functions;
};

// The fragment has the function, and is compiled apart from the kernel.
KernelSource fragment_of(const AttentionHooks& hook, const DeviceInfo& device, const std::string& file = "fragment") {
  KernelSource fragment;
  fragment.path = fmt::format("proto2_stitching/kernels/{}.{}", file, is_metal(device) ? "metal" : "h");
  fragment.entry = "score_fragment";
  fragment.includes = hook.includes;
  fragment.guarded = hook.guarded;
  return fragment;
}

// The register tiles that cover the scores of a range of keys (a row for each key), and the rows of all these tiles.
// register_tiles() cuts the tiles as `rows_of_tile` of tuned/tile.h does.
struct RegisterTiles {
  int64_t tiles = 0, rows = 0;
};
RegisterTiles register_tiles(int64_t keys, const TunedLayout& layout) {
  RegisterTiles count;
  for (int64_t key = 0, rows = 0; key < keys; key += rows) {
    const int64_t left = keys - key;
    rows =
        left == layout.main_rows || left >= layout.main_rows + layout.tail_rows ? layout.main_rows : layout.tail_rows;
    ++count.tiles;
    count.rows += rows;
  }
  return count;
}

// Counts the calls of tuned.cpu.cpp for one head, with that kernel's loops.
int64_t cpu_calls(const StitchConfig& config, const AttentionShape& shape, const TunedLayout& layout) {
  int64_t calls = 0;
  const FlashConfig& flash = config.flash;
  for (int64_t first = 0; first < shape.q_len; first += flash.block_r) {
    const int64_t queries = std::min(shape.q_len - first, flash.block_r);
    const int64_t end = shape.keys_seen(first + queries - 1);
    for (int64_t key = 0; key < end; key += flash.block_c) {
      for (int64_t panel = 0; panel < queries; panel += layout.panel) {
        const int64_t seen = shape.keys_seen(first + panel + layout.panel - 1) - key;
        const RegisterTiles count =
            register_tiles(std::clamp<int64_t>(seen, 0, std::min(end - key, flash.block_c)), layout);
        calls += config.grain == "tile"  ? count.tiles
                 : config.grain == "row" ? count.rows * layout.vectors
                                         : count.rows * layout.panel;
      }
    }
  }
  return calls;
}

// Counts the calls of mma_sync.cuda.cu for one head.
int64_t mma_sync_calls(const StitchConfig& config, const AttentionShape& shape) {
  const FlashConfig& flash = config.flash;
  const MmaSyncLayout layout(shape.head_dim, flash.block_r, flash.block_c, static_cast<int>(element_type(flash.dtype)));
  const int64_t per_product = config.grain == "tile" ? 1 : config.grain == "row" ? 2 : flash.block_c / 2;
  int64_t blocks = 0;  // the sum, over all warps, of the blocks of keys that a warp works on
  const int64_t rows = round_up(shape.q_len, flash.block_r);
  for (int64_t first = 0; first < rows; first += layout.warp_rows) {
    const int64_t last = std::min<int64_t>(first + layout.warp_rows, shape.q_len) - 1;
    const int64_t seen = shape.keys_seen(std::max<int64_t>(std::min(last, shape.q_len - 1), 0));
    blocks += divided_up(seen, flash.block_c);
  }
  return blocks * layout.warp_rows / 16 * per_product;
}

// Counts the calls of wgmma.cuda.cu for one head. A consumer is a warpgroup that computes 64 rows, and works on at
// least one block, even if it has no rows or no keys.
int64_t wgmma_calls(const StitchConfig& config, const AttentionShape& shape, const DeviceInfo& device) {
  FlashConfig flash = config.flash;
  flash.shape = shape;
  flash.shape.batch = flash.shape.q_heads = flash.shape.kv_heads = 1;
  int64_t blocks = 0;  // the sum, over all consumers, of the blocks of keys that a consumer works on
  for (const WgmmaTile& tile : wgmma_schedule(flash, device)) {
    for (int64_t first = tile.first_query; first < tile.first_query + flash.block_r; first += 64) {
      const bool exists = first >= 0 && first < shape.q_len;
      const int64_t seen = exists ? shape.keys_seen(std::min(first + 64, shape.q_len) - 1) : 0;
      blocks += std::max<int64_t>(divided_up(seen, flash.block_c), 1);
    }
  }
  return blocks * 4 * flash.block_c / 2;  // a consumer has four warps, and each thread has flash.block_c / 2 scores
}

// Counts the calls of tuned.metal for one head. A simdgroup has 8 rows. In each block of 8 keys a lane calls the
// function for two neighbouring keys of one row, unless the row does not see the key. Calls of several lanes at the
// same time count as one call.
int64_t metal_calls(const AttentionShape& shape) {
  int64_t calls = 0;
  for (int64_t first = 0; first < shape.q_len; first += 8) {
    const int64_t seen = shape.keys_seen(std::min<int64_t>(first + 8, shape.q_len) - 1);
    calls += divided_up(seen, int64_t{8}) + divided_up(std::max<int64_t>(seen - 1, 0), int64_t{8});
  }
  return calls;
}

}  // namespace

std::vector<std::string> score_forms() { return {forms.begin(), forms.end()}; }

bool form_runs_on(const std::string& form, const DeviceInfo& device) {
  if (form == "stitched_graph") return device.has(metal_graphs);
  return device.on_host || (form != "std_function" && form != "virtual");
}

std::vector<std::string> stitch_variants(const DeviceInfo& device) {
  if (!device.operations->flash) return {};
  const std::vector<std::string> all = device.operations->flash->variants();
  const auto has = [&](const char* variant) { return std::ranges::find(all, variant) != all.end(); };
  if (has("mma_sync")) return {"mma_sync", "wgmma"};
  return has("tuned") ? std::vector<std::string>{"tuned"} : std::vector<std::string>{};
}

std::optional<std::string> call_skip_reason(const StitchConfig& config, const DeviceInfo& device) {
  const std::string &form = config.form, &variant = config.flash.variant;
  const std::vector<std::string> variants = stitch_variants(device);
  if (std::find(variants.begin(), variants.end(), variant) == variants.end()) {
    return fmt::format("{} that calls a score function{}", no_kernel_for("variant " + variant),
                       variants.empty() ? "" : fmt::format("; it has {}", fmt::join(variants, ", ")));
  }
  if (!form_runs_on(form, device)) {
    if (form == "stitched_graph") return "form stitched_graph: this device has no MTLFunctionStitchingGraph";
    return fmt::format("form {}: kernels of backend {} cannot call a function of the host", form, device.backend);
  }
  if (is_metal(device)) {
    if (config.grain != "element") {
      return fmt::format("grain {}: tuned on Metal takes scores by element only", config.grain);
    }
    if (form == "pointer" && !device.has(metal_tables)) return "form pointer: this GPU has no tables of functions";
    if (form == "stitched_nolto" && !device.has(metal_libraries)) {
      return "form stitched_nolto: this GPU has no dynamic libraries";
    }
  }
  if (variant != "wgmma") return std::nullopt;
  if (config.grain != "element") return fmt::format("grain {}: wgmma takes scores by element only", config.grain);
  // The text sums up what the ptxas of CUDA 13.0 reports for tiles from 64x64 to 256x64 at head_dim 64 to 256.
  constexpr const char* costs =
      "wgmma then spills 512 bytes a thread or more, and from head_dim 128 on does not compile";
  if (form == "pointer") {
    return fmt::format("form {}: for a call to an unknown function the assembler ignores setmaxnreg (C7506); {}", form,
                       costs);
  }
  if (form == "stitched_nolto") {
    return fmt::format("form {}: for a call into another object the assembler ignores setmaxnreg (C7504); {}", form,
                       costs);
  }
  return std::nullopt;
}

bool form_is_inlined(const std::string& form) {
  return form == "monolithic" || form == "inline" || form == "switch" || form == "stitched" || form == "stitched_graph";
}

std::string default_variant(const DeviceInfo& device) {
  const std::vector<std::string> variants = stitch_variants(device);
  return variants.empty() ? "tuned" : variants.front();
}

StitchConfig StitchConfig::from(const Case& config, const DeviceInfo& device) {
  Case flash = config;
  if (!flash.has("variant")) flash.set("variant", default_variant(device));
  return {config.text("form"), config.text("grain"), config.text("function"), config.integer("work"),
          flash_config_of(flash)};
}

CallCount count_calls(const StitchConfig& config, const DeviceInfo& device) {
  const AttentionShape& shape = config.flash.shape;
  AttentionShape one_tile = shape;
  one_tile.q_len = config.flash.block_r;
  one_tile.kv_len = config.flash.block_c;
  one_tile.causal = false;
  const auto calls_of_head = [&](const AttentionShape& counted) {
    if (config.flash.variant == "wgmma") return wgmma_calls(config, counted, device);
    if (config.flash.variant == "mma_sync") return mma_sync_calls(config, counted);
    if (is_metal(device)) return metal_calls(counted);
    const AttentionHooks any;
    const KernelSource kernel = FlashOperation::of(device).kernel(config.flash, device, &any).source;
    return cpu_calls(config, counted, tuned_layout(config.flash, kernel));
  };
  return {calls_of_head(shape) * shape.batch * shape.q_heads, calls_of_head(one_tile)};
}

AttentionHooks stitch_hook(const StitchConfig& config, const DeviceInfo& device, const UserFunction& function) {
  AttentionHooks hook;
  hook.name = sha256(function.header());
  std::string choice =
      fmt::format("#define SCORE_FORM {}\n#define CALL_GRAIN {}\n#define KERNEL_GRAIN {}\n", form_number(config.form),
                  grain_number(config.grain), config.flash.variant == "wgmma" ? SCORE_ELEMENT : SCORE_ROW);
  if (config.grain != "element") {
    const KernelSource kernel = FlashOperation::of(device).kernel(config.flash, device, &hook).source;
    choice += fmt::format("#define SCORE_LANES {}\n", score_lanes(config, device, kernel));
  }
  const char* const form = !is_metal(device) ? "form.h" : config.form == "pointer" ? "pointer_metal.h" : "form_metal.h";
  hook.text = fmt::format("#include \"proto2_stitching/kernels/{}\"\n", form);
  hook.includes = {{"proto2_stitching/kernels/choice.h", choice}};
  function.add_to(hook.includes, "proto2_stitching/kernels/function.h");
  hook.guarded = function.guarded;
  hook.data = bytes_of(1);  // 1: the forms `switch` and `pointer` call the function; 0 would leave scores as they are
  const auto unchanged = [](const char* file) {
    return KernelSource{.path = fmt::format("proto2_stitching/kernels/{}.metal", file), .entry = "score_unchanged"};
  };
  if (config.form == "stitched_graph") {
    hook.fragments = {fragment_of(hook, device, "stitchable"), unchanged("stitchable_unchanged")};
  }
  if (config.form == "pointer" && is_metal(device)) {
    hook.linking = Linking::after_code_generation;
    hook.fragments = {unchanged("unchanged"), fragment_of(hook, device)};
    hook.data = bytes_of(ScoreTable{1, 0});  // StitchProblem fills in the functions
  }
  if (config.form == "stitched" || config.form == "stitched_nolto" || config.form == "virtual") {
    hook.linking = config.form == "stitched" ? Linking::before_optimizer : Linking::after_code_generation;
    hook.fragments.push_back(fragment_of(hook, device));
  }
  return hook;
}

std::vector<std::string> built_in_functions() { return {"scale", "alibi", "soft_cap", "chain"}; }

UserFunction built_in_function(const std::string& name, int64_t work) {
  const std::vector<std::string> known = built_in_functions();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw BadInput(fmt::format("function={} is not allowed; allowed are {}, and a function of your own with {} FILE",
                               name, fmt::join(known, ", "), function_option));
  }
  const std::string path = fmt::format("proto2_stitching/functions/{}.cpp", name);
  UserFunction function{.name = path, .text = read_source({}, path)};
  if (name == "chain") function.work = work;
  return function;
}

UserFunction function_of(const StitchConfig& config, const std::string& file) {
  return config.function.starts_with("file-")
             ? function_of_case(FunctionKind::score, "function", config.function, function_option, file)
             : built_in_function(config.function, config.work);
}

Plan stitch_plan(const StitchConfig& config, const DeviceInfo& device, const UserFunction& function) {
  if (const auto reason = call_skip_reason(config, device)) return {.unable = *reason};
  if (std::string reason = function_unable(FunctionKind::score, device); !reason.empty()) return {.unable = reason};
  const AttentionHooks hook = stitch_hook(config, device, function);
  return attention_plan(config.flash, device, &hook);
}

CasePlan stitch_case_plan(const Case& config, const Setting& setting) {
  const StitchConfig stitch = StitchConfig::from(config, setting.device);
  StitchCase one{stitch, function_of(stitch, setting.file(function_option))};
  Plan plan = stitch_plan(one.config, setting.device, one.function);
  const Memory memory = flash_memory(one.config.flash, 1);
  CasePlan planned{std::move(plan), std::move(one)};
  planned.memory = memory;
  return planned;
}

StitchProblem::StitchProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<StitchInputs> inputs,
                             StitchConfig config, const UserFunction& function, const Plan& plan)
    : inputs_(std::move(inputs)),
      config_(std::move(config)),
      calls_(count_calls(config_, device.info())),
      function_id_(sha256(function.header())),
      // On a GPU the assembler decides for each kernel which products and sums become one instruction. So the bits of
      // two forms may differ.
      promises_bits_(device.info().on_host) {
  const FlashConfig& flash = config_.flash;
  if (config_.form != "monolithic" && !inputs_->monolithic.contains(function_id_)) {
    StitchConfig plain = config_;
    plain.form = "monolithic";
    plain.grain = "element";
    StitchProblem problem(device, pipelines, inputs_, plain, function, stitch_plan(plain, device.info(), function));
    CommandEncoder encoder;
    problem.encode(encoder);
    device.submit(encoder);
    inputs_->monolithic.emplace(function_id_, problem.output());
  }
  AttentionHooks hook = stitch_hook(config_, device.info(), function);
  if (config_.form == "pointer" && is_metal(device.info())) {
    const Kernel& kernel = *pipelines.get(plan.launches.front().source).kernel;
    hook.data = bytes_of(ScoreTable{1, dynamic_cast<const TableKernel&>(kernel).table()});
  }
  hook.reference = double_precision(device, pipelines, function, flash.shape);
  if (config_.form == "std_function") {
    void* const address = published_address(device, pipelines, fragment_of(hook, device.info()));
    callable_ = config_.grain == "tile"  ? wrap(reinterpret_cast<TileFunction*>(address), hook.data)
                : config_.grain == "row" ? wrap(reinterpret_cast<RowFunction*>(address), hook.data)
                                         : wrap(reinterpret_cast<ElementFunction*>(address), hook.data);
  }
  flash_ = std::make_unique<FlashProblem>(device, pipelines, inputs_->flash, flash, plan, std::move(hook));
}

int64_t StitchProblem::differing_elements() const {
  const auto known = inputs_->monolithic.find(function_id_);
  if (known == inputs_->monolithic.end()) return 0;
  const Tensor now = output();
  const size_t size = size_bytes(now.dtype);
  int64_t differing = 0;
  for (size_t at = 0; at < now.bytes(); at += size) {
    differing += std::memcmp(now.data.data() + at, known->second.data.data() + at, size) != 0;
  }
  return differing;
}

Check StitchProblem::check() {
  Check check = flash_->check();
  if (const int64_t differing = differing_elements(); promises_bits_ && check.ok && differing > 0) {
    check.fail(fmt::format("{} elements of o have other bits than with the form monolithic", differing));
  }
  return check;
}

Json StitchProblem::values() const { return {{"calls", calls_.calls}, {"calls_per_tile", calls_.calls_per_tile}}; }

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> stitch_problems() {
  return [pool = InputPool<StitchInputs>()](Experiment& lab, const Case&, const CasePlan& plan) mutable {
    const auto& [stitch, function] = plan.config<StitchCase>();
    const FlashConfig& flash = stitch.flash;
    const auto fits = [&](const StitchInputs& made) { return flash.same_tensors(made.flash->config()); };
    const std::shared_ptr<StitchInputs> shared = pool.get(fits, [&] {
      auto made = std::make_shared<StitchInputs>();
      made->flash = std::make_shared<FlashInputs>(lab.device(), flash, lab.seed(), lab.input());
      return made;
    });
    return std::make_unique<StitchProblem>(lab.device(), lab.pipelines(), shared, stitch, function, plan);
  };
}

}  // namespace attn
