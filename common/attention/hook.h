// A score hook: what a caller puts in the place of common/attention/kernels/score.h, for the kernel and for the oracle.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/attention/reference.h"
#include "common/source/kernel_source.h"

namespace attn {

/// A changed score: the hook's text for the kernel, what it needs beside it, and the same function for the oracle.
struct ScoreHook {
  std::string text;                             // in place of common/attention/kernels/score.h
  std::map<std::string, std::string> includes;  // other headers that the text names
  std::vector<KernelSource> fragments;          // what the text declares and does not define
  Linking linking = Linking::before_optimizer;
  std::vector<std::byte> data;  // what ScoreContext::data points to
  ScoreFunction reference;
  std::string name;                  // hooks of the same inputs with the same name have the same reference
  FunctionConstants constants = {};  // that the text reads
  bool identity = false;             // with these constants it changes nothing
};

/// A value as a hook's data.
template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace attn
