// The spread between runs, as recorded runs show it: findings/spread.json, which `kb fit` writes.
#pragma once

#include <string>

#include "common/records/pool.h"
#include "common/records/record_file.h"

namespace attn {

/// ratio: a figure without a unit from cases that took turns, mostly the ratio of two times. share: another figure
/// without a unit, such as a share of a ceiling or an exponent. absolute: a figure with a unit, such as a time.
enum class FigureKind { ratio, share, absolute };

/// `compared`: whether the finding compares two cases. `metric`: Hypothesis::metric; the metric of an absolute figure
/// begins with the unit. The difference of two times is absolute even if the two cases took turns: another program on
/// the machine slows both cases down, and so enlarges the difference.
FigureKind kind_of(bool compared, const std::string& metric);

/// Returns the spread of a hypothesis's figures on a device, from the content of a spread.json. `device` is the name in
/// findings, with or without ", N units"; an empty hypothesis stands for the whole experiment. Takes the first of these
/// entries that is there: the hypothesis on the device; the hypothesis, the experiment, and all experiments ("*") on
/// all devices of the kind ("cpu", "cuda"). Without an entry the scale is 0.01 for an NVIDIA GPU, else 0.05. The
/// degrees of freedom are always those of Spread{}. Throws Json::exception for an entry without a scale.
Spread spread_in(const Json& fitted, const std::string& device, const std::string& experiment,
                 const std::string& hypothesis, FigureKind kind);

/// Returns spread_in() of findings/spread.json in source_root(), which is read once. A missing or unreadable file
/// counts as empty.
Spread spread_of(const std::string& device, const std::string& experiment, const std::string& hypothesis,
                 FigureKind kind);

/// A device's name without its number of units: "NVIDIA H200" for "NVIDIA H200, 132 units".
std::string without_units(const std::string& device);

/// Returns the text with the names of devices as pages show them: "1 unit" instead of "1 units". Records keep "1
/// units", because --resume, pooling and the keys of claims compare the names as recorded.
std::string with_one_unit(std::string text);
/// "cuda" if the device's name begins with "NVIDIA", else "cpu".
std::string kind_of_device(const std::string& device);
std::string name(FigureKind kind);

}  // namespace attn
