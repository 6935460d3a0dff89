#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/data/tokenizers/gpt2_pattern_internal.h"
#include "mantissa/data/tokenizers/json_reader_internal.h"
#include "mantissa/data/tokenizers/parts_internal.h"
#include "mantissa/data/tokenizers/tokenizer.h"
#include "mantissa/data/tokenizers/utf8_internal.h"
#include "mantissa/io/json_internal.h"

namespace mantissa {
namespace {

using namespace tokenizers;  // NOLINT(google-build-using-namespace): this file translates JSON to these parts

[[noreturn]] void refuse_type(const JsonReader& json, const char* part) {
  json.refuse(std::string("the ") + part + " '" + fit_for_message(json.text("type")) + "' is not supported");
}

/// Calls visit(JsonReader) for the steps of a Sequence, or for the one step.
template <typename Visit>
void each_step(const JsonReader& json, const char* steps, const Visit& visit) {
  if (json.text("type") != "Sequence") return visit(json);
  json.each(steps, [&](const JsonReader& step) { each_step(step, steps, visit); });
}

std::string one_character(const JsonReader& json, const char* name, const std::string& otherwise) {
  const std::string text = json.text_or(name, otherwise);
  if (text.empty() || utf8_step(text).bytes != text.size())
    json.refuse(std::string(name) + " is not one character");
  return text;
}

Replacement read_replacement(const JsonReader& json) {
  const std::string from = json.object("pattern").text_or("String", "");
  if (from.empty()) json.refuse("a pattern that is no plain text is not supported");
  return {from, json.text("content")};
}

std::vector<Replacement> read_normalizer(const JsonReader& json) {
  std::vector<Replacement> steps;
  each_step(json, "normalizers", [&](const JsonReader& step) {
    const std::string type = step.text("type");
    if (type == "Prepend") {
      steps.push_back({"", step.text("prepend")});
    } else if (type == "Replace") {
      steps.push_back(read_replacement(step));
    } else {
      refuse_type(step, "normalizer");
    }
  });
  return steps;
}

Prepend read_prepend(const JsonReader& json) {
  const std::string scheme =
      json.text_or("prepend_scheme", json.flag("add_prefix_space", true) ? "always" : "never");
  if (scheme == "always") return Prepend::kAlways;
  if (scheme == "first") return Prepend::kFirst;
  if (scheme != "never") json.refuse("prepend_scheme is not always, first or never");
  return Prepend::kNever;
}

Cut read_cut(const JsonReader& json) {
  const std::string type = json.text("type");
  Cut cut{.kind = Cut::Kind::kPattern};
  if (type == "Split") {
    json.accept_only("behavior", "Isolated", JsonReader::kCure);
    json.accept_only("invert", false, JsonReader::kCure);
    cut.pattern = std::make_shared<Pattern>(json.object("pattern").text("Regex"), json.where());
  } else if (type == "ByteLevel") {
    cut.kind = Cut::Kind::kBytes;
    cut.add_prefix_space = json.flag("add_prefix_space", true);
    if (json.flag("use_regex", true)) cut.pattern = std::make_shared<Pattern>(kGpt2Pattern, json.where());
  } else if (type == "Metaspace") {
    cut.kind = Cut::Kind::kMetaspace;
    cut.space = one_character(json, "replacement", "\xE2\x96\x81");
    cut.prepend = read_prepend(json);
    cut.split = json.flag("split", true);
  } else {
    refuse_type(json, "pre-tokenizer");
  }
  return cut;
}

std::vector<Cut> read_cuts(const JsonReader& json) {
  std::vector<Cut> cuts;
  each_step(json, "pretokenizers", [&](const JsonReader& step) {
    if (!cuts.empty() && cuts.back().kind != Cut::Kind::kPattern)
      step.refuse("a pre-tokenizer after ByteLevel or Metaspace is not supported");
    cuts.push_back(read_cut(step));
  });
  return cuts;
}

void read_model(const JsonReader& json, Bpe& bpe) {
  json.accept_only("type", "BPE", JsonReader::kCure);
  if (const auto* const dropout = json.find("dropout"); dropout && *dropout != 0.0)
    json.refuse("dropout makes the tokens random", "set it to null");
  json.accept_only("continuing_subword_prefix", "", JsonReader::kCure);
  json.accept_only("end_of_word_suffix", "", JsonReader::kCure);
  bpe.fuse_unknown = json.flag("fuse_unk", false);
  bpe.byte_fallback = json.flag("byte_fallback", false);
  bpe.ignore_merges = json.flag("ignore_merges", false);
  read_vocabulary(json.need("vocab"), json.where(), bpe);
  if (json.find("unk_token")) {
    const auto found = bpe.vocabulary.find(json.text("unk_token"));
    if (found == bpe.vocabulary.end()) json.refuse("unk_token is not in the vocabulary", "correct the file");
    bpe.unknown = found->second;
  }
}

void read_merges(const JsonReader& json, Bpe& bpe) {
  int64_t rank = 0;
  for (const nlohmann::json& merge : json.list("merges")) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(merge[0].get<std::string>(), merge[1].get<std::string>(), json.where(), bpe, rank++);
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      json.refuse("merge " + std::to_string(rank) + " is no pair of tokens", "correct the file");
    add_merge(text.substr(0, space), text.substr(space + 1), json.where(), bpe, rank++);
  }
}

AddedToken read_added_token(const JsonReader& json) {
  return {.id = json.id("id"),
          .content = json.text("content"),
          .single_word = json.flag("single_word", false),
          .lstrip = json.flag("lstrip", false),
          .rstrip = json.flag("rstrip", false),
          .normalized = json.flag("normalized", true),
          .special = json.flag("special", false)};
}

/// The package numbers an added token that the vocabulary does not have after all others, whatever the file says.
int64_t id_in_package(const TokenizerParts& parts, const std::string& content) {
  if (const auto found = parts.bpe.vocabulary.find(content); found != parts.bpe.vocabulary.end())
    return found->second;
  auto next = static_cast<int64_t>(parts.bpe.vocabulary.size());
  for (const auto& [id, token] : parts.added) next = std::max(next, id + 1);
  return next;
}

void read_added_tokens(const JsonReader& json, TokenizerParts& parts) {
  json.each("added_tokens", [&](const JsonReader& item) {
    const AddedToken token = read_added_token(item);
    const int64_t expected = id_in_package(parts, token.content);
    if (token.content.empty() || token.id != expected)
      item.refuse("the token '" + fit_for_message(token.content) + "' has the id " +
                      std::to_string(token.id) + ", and its place in the file asks for " +
                      std::to_string(expected),
                  "correct the file");
    for (const auto& [id, other] : parts.added)
      if (other.content == token.content) item.refuse("the token is added twice", "correct the file");
    parts.add(token);
  });
}

void read_template(const JsonReader& json, TokenizerParts& parts) {
  bool is_after = false;
  json.each("single", [&](const JsonReader& item) {
    if (item.find("Sequence")) {
      if (is_after) item.refuse("a template that repeats the text is not supported");
      is_after = true;
      return;
    }
    const std::string name = item.object("SpecialToken").text("id");
    const JsonReader tokens = json.object("special_tokens");
    const JsonReader token = tokens.object(name.c_str());
    for (const nlohmann::json& id : token.list("ids")) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(parts.vocabulary_size))
        token.refuse("the template's id " + fit_for_message(id.dump()) + " is that of no token",
                     "correct the file");
      (is_after ? parts.after : parts.before).push_back(id.get<int64_t>());
    }
  });
  if (!is_after) json.refuse("the template has no place for the text", "correct the file");
}

void read_post_processor(const JsonReader& json, TokenizerParts& parts) {
  bool has_template = false;
  each_step(json, "processors", [&](const JsonReader& step) {
    const std::string type = step.text("type");
    if (type == "ByteLevel") return;  // changes positions, but no ids
    if (type != "TemplateProcessing") refuse_type(step, "post-processor");
    if (has_template) step.refuse("a second template is not supported");
    has_template = true;
    read_template(step, parts);
  });
}

/// The order in which the steps of a decoder may follow each other.
enum class Stage { kReplace, kBytes, kFuse, kStrip };

void read_decoder_step(const JsonReader& json, Decoding& to, Stage& stage) {
  const std::string type = json.text("type");
  const Stage before = stage;
  if (type == "Replace") {
    to.replacements.push_back(read_replacement(json));
    stage = Stage::kReplace;
  } else if (type == "ByteFallback") {
    to.byte_fallback = true;
    stage = Stage::kBytes;
  } else if (type == "Fuse") {
    stage = Stage::kFuse;
  } else if (type == "Strip") {
    if (before != Stage::kFuse) json.refuse("Strip without Fuse before it is not supported");
    json.accept_only("stop", 0, JsonReader::kCure);
    to.strip = one_character(json, "content", " ");
    to.strip_count = json.find("start") ? json.id("start") : 0;
    stage = Stage::kStrip;
  } else {
    refuse_type(json, "decoder");
  }
  if (stage < before) json.refuse("the steps of the decoder are in another order than Llama's");
}

Decoding read_decoder(const JsonReader& json) {
  const std::string type = json.text("type");
  Decoding decoding;
  if (type == "ByteLevel") {
    decoding.kind = Decoding::Kind::kBytes;
  } else if (type == "Metaspace") {
    decoding.kind = Decoding::Kind::kMetaspace;
    decoding.space = one_character(json, "replacement", "\xE2\x96\x81");
    decoding.strips_first = read_prepend(json) != Prepend::kNever;
  } else {
    decoding.kind = Decoding::Kind::kSteps;
    Stage stage = Stage::kReplace;
    each_step(json, "decoders", [&](const JsonReader& step) { read_decoder_step(step, decoding, stage); });
  }
  return decoding;
}

}  // namespace

Tokenizer parse_tokenizer(std::string_view text, const std::string& file) {
  const std::string where = quoted_file(file);
  const nlohmann::json dom = parse_tokenizer_json(text, where);
  const JsonReader json(dom, where);
  const auto parts = std::make_shared<TokenizerParts>();
  json.accept_only("truncation", nullptr, "set it to null");
  json.accept_only("padding", nullptr, "set it to null");
  const JsonReader model = json.object("model");
  read_model(model, parts->bpe);
  read_merges(model, parts->bpe);
  parts->vocabulary_size = static_cast<int64_t>(parts->bpe.tokens.size());
  if (json.find("normalizer")) parts->normalizer = read_normalizer(json.object("normalizer"));
  if (json.find("pre_tokenizer")) parts->cuts = read_cuts(json.object("pre_tokenizer"));
  read_added_tokens(json, *parts);
  if (json.find("post_processor")) read_post_processor(json.object("post_processor"), *parts);
  if (json.find("decoder")) parts->decoding = read_decoder(json.object("decoder"));
  return Tokenizer(parts);
}

}  // namespace mantissa
