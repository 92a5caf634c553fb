// The user's own modifiers: a score function and a mask function from files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/attention/hook.h"
#include "common/attention/modifiers.h"
#include "common/attention/user_function.h"
#include "common/cases/modified_attention.h"
#include "common/cases/user_functions.h"
#include "common/experiment/experiment.h"

namespace attn {

/// The functions of a case. They come after all other modifiers: the score function changes the score that the
/// modifiers make. A pair is seen if every rule and the mask function allow it.
struct UserFunctions {
  std::optional<UserFunction> score = {}, mask = {};
  bool lists = true;  // the mask function has lists of key blocks, which the device makes once

  /// The functions of the files that the case names. Throws BadInput as function_of_case() does.
  static UserFunctions from(const Case& config, const Files& files);

  /// Why there is no oracle for these functions where `device` is under test; empty where there is one.
  std::string unable(const DeviceInfo& device) const;

  /// Puts the texts of the functions into the kernel's hooks.
  void add_texts(AttentionHooks& hooks) const;
  /// add_texts(), and the functions' part of the oracle. `attention` has the ranges that the other rules leave.
  void add(AttentionHooks& hooks, Device& device, PipelineCache& pipelines, const ModifiedAttention& attention) const;
};

/// The options --score-function and --mask-function. Each fixes its axis to `none` and the file's value.
std::vector<FileOption> function_options();

/// Throws BadInput where one of the files does not compile.
void require_functions(Experiment& lab);

}  // namespace attn
