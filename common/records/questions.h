// The questions that decisions.h answers: which measurements and which claims are the rows of each table.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/records/measurement.h"

namespace attn {

/// A choice among cases that differ only in `axes`. A shape is a combination of the values of the other axes.
struct Choice {
  std::string what;
  std::vector<std::string> axes;           // an option's name has the values of these axes, without "none"
  std::vector<std::string> own_axes = {};  // each option chooses their values too: the fastest case counts
  std::string between = " ";               // stands between the values
  std::function<bool(const Case&)> takes = {};
  size_t at_least = 2;    // a shape with fewer options is left out
  std::string from = {};  // a claim about the tokens from which on the choice is of use; shorter shapes are left out
};

/// Rows from claims. "{axis}" in a text stands for the value of this axis, "{claim}" for the id of the hypothesis.
struct Told {
  std::vector<std::string> hypotheses = {};  // empty: all
  std::string metric = {};                   // of the hypotheses; empty: any
  std::string what;
  /// What to take if the figure, a ratio of two times, is below 1, and if it is above 1 (decisions.h: as_good). Empty:
  /// the figure is no choice.
  std::string take = {}, other = {};
  std::string over = {};  // an axis over which neighbouring cases are merged, as over lengths
  std::string unit = {};  // empty: that of the metric. "%": the figure is a share, shown in per cent
};

/// A row for each combination of the axes' values, with numbers that measurements have.
struct Counted {
  std::vector<std::string> axes;  // the value of the first is `what`
  bool (*takes)(const Case&);
  struct Number {
    std::string unit;
    std::function<double(const Measurement&)> value;  // not a number: the measurement has none
  };
  std::vector<Number> numbers;
};

struct Question {
  std::string experiment, id, title;
  std::vector<Choice> choices = {};
  std::vector<Told> told = {};
  std::vector<Counted> counted = {};
  /// The row that README shows: the beginning of its `what`, and values of axes, as many of the first as some row has.
  std::string example = {};
  std::vector<std::pair<std::string, std::string>> example_axes = {};
};

/// Whether a claim has a row.
bool tells(const Told& told, const std::string& hypothesis, const std::string& metric);

/// The questions, in the order of the pages.
const std::vector<Question>& questions();

}  // namespace attn
