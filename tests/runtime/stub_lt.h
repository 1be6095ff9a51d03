// What a test sees of a stub matrix library (stub_lt.cpp): the products it was asked for, and what it shall answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

struct StubProduct {
    bool transpose_a = false;
    bool transpose_b = false;
    std::uint64_t a_rows = 0;
    std::uint64_t a_columns = 0;
    std::uint64_t b_rows = 0;
    std::uint64_t b_columns = 0;
    std::uint64_t d_rows = 0;
    std::uint64_t d_columns = 0;
    std::int64_t a_stride = 0;
    std::int64_t b_stride = 0;
    std::int64_t d_stride = 0;
    int a_dtype = 0;
    int d_dtype = 0;
    double alpha = 0;
    double beta = 0;
    const void* a = nullptr;
    const void* b = nullptr;
    void* d = nullptr;
    const void* workspace = nullptr;
    std::size_t workspace_bytes = 0;
    std::uint64_t algorithm = 0;  // the rows, columns and depth it was found for, multiplied
    std::size_t proposal = 0;     // which of those found
    const void* stream = nullptr;
};

// An algorithm that the library proposes.
struct StubProposal {
    float waves = 1;
    std::size_t workspace_bytes = 4096;
};

struct StubLt {
    std::mutex mutex;
    std::vector<StubProduct> products;
    std::vector<std::uint32_t> alignments;  // the last preference's, of a, b, c and d
    std::uint32_t reduction_schemes = 0;
    int searches = 0;  // for algorithms
    // Answers.
    int multiply_status = 0;
    bool computes = true;          // else products are checked and recorded alone
    bool only_exact = false;       // an algorithm serves the shape it was found for and no other
    std::uint64_t least_side = 0;  // no algorithm for a result with fewer rows or columns
    std::vector<StubProposal> proposals = {{}};
};

extern "C" StubLt* stub_lt();
