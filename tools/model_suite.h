// From a model's configuration to the kernels that its forward pass launches around the matrix products and attention:
// what `rowjit tune --model` tunes; a training step launches the backward of each besides. Which norm, rotary
// embedding, activation and loss an architecture has is a row of a table in model_suite.cpp; extents and numbers come
// from the configuration.
//
// Of a model with a vision tower, the language model. Left out: the embedding's look-up and its scaling, a router's
// choice of experts (and its sigmoid, where it has one in place of a softmax), and the weighted sum of the experts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/library/registry.h"

namespace rowjit {

struct SuiteEntry {
    std::string name;  // unique within the suite: "residual_norm"
    std::string op;    // a name of the registry
    OpRequest request;
    int count_per_step = 1;           // launches in one forward pass
    std::int64_t rows_per_token = 1;  // rows of a launch for each token: a norm of every head has one per head
};

// The suite of the Hugging Face config.json whose text is `config`; `source` names it in messages. A residual addition
// is fused into the norm that follows it. The dtype is the configuration's dtype or torch_dtype, bf16 when it names
// none.
//
// Throws Error(kParse) for text that is no JSON object and for a field that is missing or not what it should be, and
// Error(kUnsupported) for a model_type, activation or dtype that is not known; the message names the known ones.
std::vector<SuiteEntry> model_suite(std::string_view config, std::string_view source);

}  // namespace rowjit
