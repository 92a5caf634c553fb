"""Groups the findings of a device into recommendations. A claim is a hypothesis of an experiment. A finding is the
verdict on a claim for one subject: a case or a group of cases. A recommendation is a line for one claim, or for several
claims with the same advice."""

import collections
import fnmatch
import functools
import json
import math

import records as rec

# The topics of the recommendations, also called questions, in their order on the pages, with patterns of claims. A claim
# belongs to the topic of the first pattern that fits the claim.
TOPICS = (
    ("Tile", ("proto1_flash/default_tile", "proto1_flash/worst_tile", "proto1_flash/best_tile", "proto1_flash/bc80")),
    ("Element type", ("proto1_flash/bf16", "proto1_flash/ceiling_16_bit", "proto1_flash/ceiling")),
    ("Layout", ("proto1_flash/layout",)),
    ("Causal mask", ("proto1_flash/causal", "proto1_flash/ceiling*_causal")),
    ("Kernel, heads and length", ("proto1_flash/ladder", "proto1_flash/*")),
    ("Calls of score functions", ("proto2_stitching/inline*", "proto2_stitching/stitched", "proto2_stitching/stitch_or_constants",
                                  "proto2_stitching/noinline", "proto2_stitching/*")),
    ("Compiled variants", ("proto4_constants/cost", "proto4_constants/run_time", "proto4_constants/*")),
    ("Key/value cache", ("proto3_paged/paging", "proto3_paged/prefill_paging", "proto3_paged/waste", "proto3_paged/page_order",
                         "proto3_paged/eight_bits", "proto3_paged/int8_error", "proto3_paged/cache_layout", "proto3_paged/*")),
    ("Linear attention", ("proto6_linear/equivalence", "proto6_linear/crossover*", "proto6_linear/decode_break_even",
                          "proto6_linear/fused", "proto6_linear/chunk*", "proto6_linear/*scan*", "proto6_linear/*")),
    ("Modifiers, RoPE and grouped heads", ("proto7_variants/same_tile", "proto7_variants/gqa*", "proto7_variants/expand_share",
                                           "proto7_variants/rope*", "proto7_variants/score*", "proto7_variants/*")),
    ("Generated kernels", ("proto5_codegen/slower", "proto5_codegen/published", "proto5_codegen/viable", "proto5_codegen/*")),
    ("Calls from a framework", ("proto8_extension/*",)),
)
QUESTIONS = [topic for topic, _ in TOPICS]
# The advice that the experiments register today, by claim and verdict. It replaces the advice in older findings.
WORDS = {f"{claim['experiment']}/{claim['hypothesis']}": claim["advice"]
         for claim in map(json.loads, (rec.ROOT / rec.CLAIMS).read_text(encoding="utf-8").splitlines())}
# Claims that give no advice, e.g. claims that compare the published study's figure with the figure of another claim.
NO_ADVICE = {key for key, words in WORDS.items() if not any(words.values())}
# The axes by which cases are told apart, the clearest first. Other axes follow, in the order in which the findings'
# subjects name them. A subject is a text such as "head_dim=64 causal=0".
FIRST_AXES = ("generator", "form", "grain", "from", "read", "kernel", "variant", "work", "page_size", "dtype", "cache_dtype",
              "head_dim", "q_len", "kv_len", "causal", "lengths", "gate", "batch")
SAYS_NOTHING = rec.MODIFIERS | {"work": 0}  # values that the text of a single case leaves out
QUOTED = {"from", "read"}  # axes whose names read as words of a sentence
MOST_AXES = 3  # the largest number of axes by which a line names a case, or the range of all cases
MOST_VALUES = 5  # the largest number of values of an axis that a line lists
MOST_COUNTED = 8  # a line counts cases by the values of an axis only if the axis has at most this number of values
LEAST_GAIN = 0.2  # a line counts cases by an axis only if this lowers their impurity() by more than this share


def key_of(finding):
    return f"{finding['data']['experiment']}/{finding['data']['hypothesis']['id']}"


def state_of(finding):
    return finding["data"]["verdict"]["state"]


def place(key):
    """Returns the index of a claim's topic in TOPICS, and the index of the first pattern that fits the claim."""
    for number, (_, patterns) in enumerate(TOPICS):
        for i, pattern in enumerate(patterns):
            if fnmatch.fnmatchcase(key, pattern):
                return number, i
    return len(TOPICS), 0


def words_of(finding):
    """Returns the advice of a finding, without its full stop, or None if the finding gives no advice. Without words
    the advice repeats the verdict."""
    key, state = key_of(finding), state_of(finding)
    if state == "inconclusive" or not finding.get("advised", True) or key in NO_ADVICE:
        return None
    words = WORDS.get(key, {}).get(state, finding["data"].get("advice"))
    if not words:
        return f"The claim {'holds' if state == 'supported' else 'does not hold'}"
    return words.format(threshold=finding["data"]["hypothesis"]["threshold"]).removesuffix(".")


@functools.cache
def axes_of(subject):
    named = dict(word.split("=", 1) for word in subject.split() if "=" in word)
    return {axis: str(off) for axis, off in rec.MODIFIERS.items()} | named


def axis_values(finding):
    """Returns the axes of a finding's subject with their values. A modifier that the subject does not name is off."""
    return axes_of(finding["data"]["subject"])


def in_order(values):
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def listed(words):
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def distinct_axes(findings):
    """Returns the axes in which the subjects of findings differ, the clearest first. Leaves out an axis whose value
    follows from the value of an axis before it."""
    subjects = [axis_values(finding) for finding in findings]
    axes = [axis for axis in dict.fromkeys((*FIRST_AXES, *(axis for subject in subjects for axis in subject)))
            if len({subject[axis] for subject in subjects if axis in subject}) > 1]
    kept = []
    for axis in axes:
        if not any(len({(subject.get(before), subject.get(axis)) for subject in subjects}) ==
                   len({subject.get(before) for subject in subjects}) for before in kept):
            kept.append(axis)
    return kept


def values_of(findings, axis):
    """Returns the values that an axis has in the subjects of findings."""
    return {values[axis] for values in map(axis_values, findings) if axis in values}


def shown(axis, value):
    return "off" if value == str(rec.MODIFIERS.get(axis)) else value


def name_of(axis):
    return f"`{axis}`" if axis in QUOTED else axis


def value_text(axis, values, others=()):
    """Returns a text such as "head_dim 64 and 128". Many numbers are shown by the lowest and the highest number, or, if
    all of them lie on one side of `others`, by one end, such as "up to 512"."""
    words = in_order(values)
    if len(words) > MOST_VALUES:
        try:
            numbers, rest = sorted(map(float, words)), sorted(map(float, others))
        except ValueError:
            return f"{len(words)} values of {name_of(axis)}"
        if rest and numbers[-1] < rest[0]:
            return f"{axis} up to {numbers[-1]:g}"
        if rest and numbers[0] > rest[-1]:
            return f"{axis} from {numbers[0]:g} on"
        return f"{axis} {numbers[0]:g} to {numbers[-1]:g}"
    return f"{name_of(axis)} {listed([shown(axis, word) for word in words])}"


def told_apart(some, rest, axes):
    """Returns a text with values of one axis that tell the findings `some` from the findings `rest`, or "". Takes the
    first of `axes` on which `some` and `rest` share no value, and on which the values of `some` make a short text."""
    for axis in axes:
        mine, theirs = values_of(some, axis), values_of(rest, axis)
        if mine & theirs or any(axis not in axis_values(finding) for finding in (*some, *rest)):
            continue
        text = value_text(axis, mine, theirs)
        if len(mine) <= MOST_VALUES or " up to " in text or " on" in text:
            return text
    return ""


def impurity(mine, total):
    """Returns how mixed `total` cases are, of which `mine` belong to a group: 0 if all or none belong to the group, most
    if half of them do."""
    return mine * (total - mine) / total


def counted(some, everything, axes):
    """Returns a text that says, for each value of one axis in the findings `some`, how many of all cases with this
    value are in `some`. Takes the axis that lowers impurity() most. Returns "" if that gain is too small."""
    best, least = "", (1 - LEAST_GAIN) * impurity(len(some), len(everything))
    for axis in axes:
        total = collections.Counter(axis_values(finding).get(axis) for finding in everything)
        mine = collections.Counter(axis_values(finding).get(axis) for finding in some)
        left = math.fsum(impurity(mine[value], total[value]) for value in total)
        if len(total) <= MOST_COUNTED and left < least:
            least = left
            best = f"{name_of(axis)} " + ", ".join(f"{shown(axis, value)}: {mine[value]} of {total[value]}"
                                          for value in in_order([value for value in mine if value is not None]))
    return best


def extreme(findings):
    """Returns the finding whose figure is farthest from its threshold."""
    def distance(finding):
        return abs(finding["data"]["estimate"]["value"] - finding["data"]["hypothesis"]["threshold"])

    return max(findings, key=distance)


def case_text(finding, axes):
    """Returns a text that names a case by at most MOST_AXES of `axes`. Leaves out the values in SAYS_NOTHING."""
    values = {axis: value for axis, value in axis_values(finding).items() if value != str(SAYS_NOTHING.get(axis))}
    return ", ".join(f"{name_of(axis)} {values[axis]}" for axis in [axis for axis in axes if axis in values][:MOST_AXES])


def where(some, everything):
    """Returns a text that says in which cases the findings `some` of a claim were made. `everything` has all findings of
    the claim."""
    rest = [finding for finding in everything if not any(finding is each for each in some)]
    axes = distinct_axes(everything)
    if not rest:
        if len(everything) == 1:
            return "at " + case_text(some[0], FIRST_AXES) if case_text(some[0], FIRST_AXES) else "on this device"
        named = ", ".join(value_text(axis, values_of(some, axis)) for axis in axes[:MOST_AXES])
        return ("in both cases" if len(some) == 2 else f"in all {len(some)} cases") + (f" ({named})" if named else "")
    apart = told_apart(some, rest, axes)
    if apart:
        return f"at {apart}"
    text = f"in {len(some)} of {len(everything)} cases"
    opposite = [finding for finding in rest if state_of(finding) != "inconclusive"]
    apart = told_apart(some, opposite, axes) if opposite else ""
    if apart:
        return f"{text}, at {apart}"
    detail = "; ".join(word for word in (counted(some, everything, axes), "e.g. " + case_text(extreme(some), axes)) if word)
    return f"{text} ({detail})"


def next_of(findings):
    """Returns the interval in which the next run's figures are expected."""
    return rec.next_text(*(finding["data"]["estimate"] for finding in findings))


def figure_text(findings):
    """Returns the figures of findings, with the interval of the next run and the lowest confidence. Exact figures have
    no interval, and their confidence is not told."""
    doubts = [finding for finding in findings if not rec.is_exact(finding)]
    if not doubts:
        return f"{rec.figures(findings)}, exact"
    least = rec.confidence_text(min(doubts, key=lambda finding: finding["confidence"]))
    return f"{rec.figures(findings)} [{next_of(findings)}], confidence {least}"


def ids(findings):
    """Returns the id of the finding that is farthest from the threshold, and the number of the other findings."""
    return f"`{extreme(findings)['id']}`" + (f" and {len(findings) - 1} more" if len(findings) > 1 else "")


def by_advice(findings):
    """Groups the findings of one claim by their advice."""
    groups = {}
    for finding in findings:
        words = words_of(finding)
        if words:
            groups.setdefault(words, []).append(finding)
    return groups


def line(item):
    """Returns the line of a recommendation. `item` has a list of pairs for each advice. A pair has the findings of one
    claim that give the advice, and all findings of this claim. The line names each claim once, with its metric."""
    named, sentences = set(), []
    for words, pairs in item.items():
        texts = []
        for some, everything in pairs:
            hypothesis = some[-1]["data"]["hypothesis"]
            known = hypothesis["id"] in named
            named.add(hypothesis["id"])
            text = f"{'' if known else hypothesis['metric'] + ' = '}{figure_text(some)}"
            texts.append(": ".join(filter(None, (where(some, everything), text))) +
                         f" ({'' if known else '`' + hypothesis['id'] + '`, '}{ids(some)})")
        sentences.append(f"**{words}** {'; '.join(texts)}")
    return ". But ".join(sentences) + "."


def claims_in_order(findings):
    """Yields (question, findings) of each claim, in the order of TOPICS."""
    claims = rec.by_claim(findings)
    for own in sorted(claims.values(), key=lambda own: place(key_of(own[0]))):
        number = place(key_of(own[0]))[0]
        yield TOPICS[number][0] if number < len(TOPICS) else own[0]["data"]["experiment"], own


def short(item):
    """Returns the line of a recommendation without figures: each advice, and the cases in which the advice holds."""
    return ". But ".join(f"**{words}** {'; '.join(dict.fromkeys(where(*pair) for pair in pairs))}".rstrip()
                         for words, pairs in item.items()) + "."


def recommendations(findings, form=line):
    """Returns the lines of the recommendations, by question. The line of a claim that gives two advices says where each
    advice holds. Claims of one question that give the same advice share one line. `form` makes a line from the argument
    of line()."""
    topics = {}
    for topic, own in claims_in_order(findings):
        advices = by_advice(own)
        items = topics.setdefault(topic, [])
        same = next((item for item in items if set(item) & set(advices)), None)
        if same is None and advices:
            same = {}
            items.append(same)
        for words, some in advices.items():
            same.setdefault(words, []).append((some, own))
    return {topic: list(map(form, items)) for topic, items in topics.items() if items}


def undecided(findings):
    """Returns a row for each claim that has cases without an advice. Such a case is undecided, or is decided with too
    much doubt for an advice."""
    rows = []
    for topic, own in claims_in_order(findings):
        if key_of(own[0]) in NO_ADVICE:
            continue
        some = [finding for finding in own if words_of(finding) is None]
        if some:
            rows.append((topic, f"`{own[0]['data']['hypothesis']['id']}`", f"{len(some)} of {len(own)}", rec.figures(some),
                         next_of(some), rec.holds_if(own[-1])))
    return rows
