// The user's modifiers: a score function and a mask function from files.
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

/// The user's functions of a case. The score function gets the score after all modifiers have changed the score. A
/// query sees a key if neither a modifier nor the mask function hides the pair.
struct UserFunctions {
  std::optional<UserFunction> score = {}, mask = {};
  bool lists = true;  // attention visits only key blocks in lists that the device makes from the mask function

  /// Returns the functions of the files that the case names. Throws BadInput as function_of_case() does.
  static UserFunctions from(const Case& config, const Files& files);

  /// Returns why these functions have no oracle when `device` is under test, or an empty text.
  std::string unable(const DeviceInfo& device) const;

  /// Puts the texts of the functions into the kernel's hooks.
  void add_texts(AttentionHooks& hooks) const;
  /// Does what add_texts() does, and adds the functions to the oracle. `attention` knows which pairs the modifiers
  /// hide.
  void add(AttentionHooks& hooks, Device& device, PipelineCache& pipelines, const ModifiedAttention& attention) const;
};

/// The options --score-function and --mask-function. Each option sets its axis to the values `none` and the name of the
/// file's function.
std::vector<FileOption> function_options();

/// Throws BadInput if one of the files does not compile.
void require_functions(Experiment& lab);

}  // namespace attn
