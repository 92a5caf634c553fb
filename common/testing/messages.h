// Messages of errors: tests compare key words, not whole messages.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace attn::test {

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// Expects that `text` has each of the words.
inline void expect_words(std::string_view text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) EXPECT_TRUE(contains(text, word)) << "no '" << word << "' in: " << text;
}

/// Returns the message of the E that `action` throws. Fails the test if `action` throws nothing.
template <typename E, typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "the action threw no exception";
  return {};
}

/// Expects that `action` throws an E whose message has each of the words.
template <typename E, typename Action>
void expect_error(const Action& action, std::initializer_list<std::string_view> words) {
  expect_words(message_of<E>(action), words);
}

}  // namespace attn::test
