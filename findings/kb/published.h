// Our answers to the statements of published studies, findings/published/*.json.
#pragma once

#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/records/claim.h"

namespace attn::kb {

/// Returns the statements of the studies in the source tree, as their files have them. Each id begins with the name of
/// the study's file: "apple_m4/4b". `where` has the conditions of the study, and those of the statement, which come
/// first. Empty where the tree has no studies. Throws BadInput for a damaged file.
std::vector<Json> published_statements(const std::string& source_tree);

/// Returns the answer of a figure to a statement with a range: "within" if the next run's figure is expected within the
/// range, "better" or "worse" if it is expected outside, and "undecided" otherwise. An end of the range may be null,
/// and belongs to the range. judge() decides on which side of an end the figure lies.
std::string published_answer(const Json& statement, const Conclusion& conclusion);

/// Returns the answers of a hypothesis's figure to the statements that name the hypothesis, by the statement's id. A
/// statement is answered if each of the figure's `cases` fulfils `where`, which has conditions by axis: a value, the
/// ends of a range, or null for any value. A case without the axis fulfils the condition; so does a case in which an
/// axis with a range is 0, which means that the case has no such size.
Json published_answers(const std::vector<Json>& statements, const std::string& experiment,
                       const std::string& hypothesis, const Json& cases, const Conclusion& conclusion);

}  // namespace attn::kb
