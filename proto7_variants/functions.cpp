#include "proto7_variants/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "common/base/sha256.h"
#include "common/cases/modified_attention.h"
#include "common/cases/user_functions.h"

namespace attn {
namespace {

struct Option {
  FunctionKind kind;
  const char *axis, *name, *help;
};
constexpr std::array<Option, 2> options = {
    {{FunctionKind::score, "score_function", "--score-function",
      "a score function of your own, after the modifiers:\n"
      "float score(float s, int q, int k, const ScoreContext& context)"},
     {FunctionKind::mask, "mask_function", "--mask-function",
      "a mask function of your own, in addition to the modifiers:\n"
      "bool visible(int q, int k, const MaskContext& context), and, so that tiles can be\n"
      "skipped, KeyRange keys(int q, const MaskContext& context)"}}};

std::optional<UserFunction> function_of(const Option& option, const Case& config, const Files& files) {
  const std::string value = config.has(option.axis) ? config.text(option.axis) : "none";
  if (value == "none") return std::nullopt;
  return function_of_case(option.kind, option.axis, value, option.name, file_of(files, option.name));
}

}  // namespace

UserFunctions UserFunctions::from(const Case& config, const Files& files) {
  return {function_of(options[0], config, files), function_of(options[1], config, files), config.integer("lists") != 0};
}

std::string UserFunctions::unable(const DeviceInfo& device) const {
  for (const auto* function : {&score, &mask}) {
    std::string reason = *function ? function_unable((*function)->kind, device) : std::string();
    if (!reason.empty()) return reason;
  }
  return {};
}

void UserFunctions::add_texts(AttentionHooks& hooks) const {
  if (!score && !mask) return;
  const std::string which =
      fmt::format("#define USER_SCORE {}\n#define USER_MASK {}\n", score.has_value() ? 1 : 0, mask.has_value() ? 1 : 0);
  // Each hook defines the macros, because each hook may be the first that a kernel includes.
  const auto instead = [&](const char* hook) {
    return fmt::format("{}#include \"proto7_variants/kernels/user_{}.h\"\n", which, hook);
  };
  if (score) {
    hooks.text = instead("score");
    hooks.change = ScoreChange::any;
  }
  if (mask) {
    hooks.includes["common/attention/kernels/keys.h"] = instead("keys");
    hooks.includes["common/attention/kernels/mask.h"] = instead("visible");
    // A mask function whose text has none of these words does not take the context. Such a function hides the same
    // pairs in all sequences and heads, so all of them share the lists.
    const bool may_take_context = std::ranges::any_of(std::array{"Context", "auto", "template"}, [&](const char* word) {
      return mask->text.find(word) != std::string::npos;
    });
    const ListScope own = may_take_context ? ListScope::head : ListScope::all;
    hooks.lists = lists ? std::max(hooks.lists, own) : ListScope::none;
  }
  for (const auto* function : {&score, &mask}) {
    if (!*function) continue;
    const char* const kind = function == &score ? "score" : "mask";
    (*function)->add_to(hooks.includes, fmt::format("common/attention/kernels/user_{}.h", kind));
    hooks.guarded |= (*function)->guarded;
    hooks.name += fmt::format(" {}_function={}", kind, sha256((*function)->header()));
  }
}

void UserFunctions::add(AttentionHooks& hooks, Device& device, PipelineCache& pipelines,
                        const ModifiedAttention& attention) const {
  add_texts(hooks);
  std::vector<ScoreFunction> steps;
  if (score) steps.push_back(double_precision(device, pipelines, *score, attention.shape()));
  if (mask) steps.push_back(MaskOracle(device, pipelines, *mask, attention.shape()).reference());
  if (steps.empty()) return;
  const auto rules = std::make_shared<ModifiedAttention>(attention);
  hooks.reference = [modify = std::move(hooks.reference), steps = std::move(steps), rules](
                        std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    modify(scores, batch, head, q);
    for (const ScoreFunction& step : steps) step(scores, batch, head, q);
    // A pair that a modifier hides stays hidden, even if the score function gives the pair a finite score.
    const auto [begin, end] = rules->range(batch, q);
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto k = static_cast<int64_t>(i);
      if (k < begin || k >= end || !rules->unmasked(q, k)) scores[i] = -std::numeric_limits<double>::infinity();
    }
  };
}

std::vector<FileOption> function_options() {
  std::vector<FileOption> all;
  for (const Option& option : options) {
    all.push_back({option.name, option.help, [option](const std::string& path) {
                     return std::vector{texts(option.axis, {"none", read_function(option.kind, path).text_name()})};
                   }});
  }
  return all;
}

void require_functions(Experiment& lab) {
  for (const Option& option : options) {
    const std::string path = lab.file(option.name);
    if (!path.empty()) require_compiles(lab.device(), read_function(option.kind, path));
  }
}

}  // namespace attn
