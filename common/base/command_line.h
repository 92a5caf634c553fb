// The command line of a program, for programs that are linked with CLI11.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/number.h"
#include "common/base/standard_streams.h"

namespace attn {

/// Adds an option whose value is a number from `min` to `max`. CLI11's own options with numbers would also take nan,
/// hex digits and other texts. `target` has the type of the limits, or is an optional of this type.
template <typename Target, typename Number>
CLI::Option* number_option(CLI::App& app, const std::string& name, Target& target, Number min, Number max,
                           const std::string& type, const std::string& help) {
  const auto take = [name, &target, min, max](const CLI::results_t& values) {
    // parse_command_line() refuses an empty value.
    if (!values.back().empty()) target = parse_number(name, values.back(), min, max);
    return true;
  };
  return app.add_option(name, take, help)->type_name(type);
}

/// Returns what is wrong with a command line that CLI11 refused.
inline std::string refusal_text(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  std::ranges::replace(text, '\n', ' ');
  if (error.get_name() == "ArgumentMismatch") {
    std::vector<const CLI::Option*> options = app.get_options();
    for (const CLI::App* command : app.get_subcommands())
      for (const CLI::Option* option : command->get_options()) options.push_back(option);
    for (const CLI::Option* option : options) {
      const size_t times = option->count();
      if (times > 1 && option->get_items_expected_max() == 1 && text.starts_with(option->get_name() + ":"))
        return fmt::format("{}: given {}; once is allowed", option->get_name(),
                           times == 2 ? "twice" : fmt::format("{} times", times));
      if (text == fmt::format("{}: 1 required {} missing", option->get_name(), option->get_type_name()))
        return fmt::format("{}: its value, {}, is missing", option->get_name(), option->get_type_name());
    }
  }
  const auto pair = [&](const std::string& verb, const std::string& words) {
    const size_t at = text.find(verb);
    return fmt::format(fmt::runtime(words), text.substr(0, at), text.substr(at + verb.size()));
  };
  if (error.get_name() == "ExcludesError")
    return pair(" excludes ", "{} and {} are given; only one of them is allowed");
  if (error.get_name() == "RequiresError") return pair(" requires ", "{} is allowed only with {}");
  return text;
}

/// Parses a command line. Prints the text that --help or --version ask for, and then returns false. Throws BadInput,
/// with one line, for arguments that the program does not take, and for an option with an empty value.
inline bool parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    to_stdout(app.help());
    return false;
  } catch (const CLI::CallForVersion& version) {
    to_stdout(std::string(version.what()) + "\n");
    return false;
  } catch (const CLI::ParseError& error) {
    throw BadInput(refusal_text(app, error) + "; --help shows what is allowed");
  }
  const auto refuse_empty = [](const CLI::App& parsed) {
    for (const CLI::Option* option : parsed.get_options()) {
      if (option->get_positional() || std::ranges::count(option->results(), "") == 0) continue;
      throw BadInput(option->get_name() + " is empty; --help shows what is allowed");
    }
  };
  refuse_empty(app);
  for (const CLI::App* command : app.get_subcommands()) refuse_empty(*command);
  return true;
}

}  // namespace attn
