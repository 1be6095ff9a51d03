#include "cache/entry.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "cache/bytes.h"
#include "cache/key.h"

namespace rowjit {

namespace {

constexpr std::string_view kMagic = "rowjit-k";
constexpr std::size_t kHeaderBytes =
    kMagic.size() + 2 * sizeof(std::uint32_t) + kDigestBytes + 3 * sizeof(std::uint64_t);

// The bindings below name every field: a field that a struct gains does not compile until it is stored too.

nlohmann::json argument_json(const ArgumentInfo& argument) {
    const auto& [offset_bytes, size_bytes, kind] = argument;
    return {offset_bytes, size_bytes, kind};
}

ArgumentInfo argument_from(const nlohmann::json& json) {
    return {json.at(0).get<int>(), json.at(1).get<int>(), json.at(2).get<std::string>()};
}

nlohmann::json function_json(const FunctionInfo& function) {
    const auto& [name, registers, scalar_registers, spill_bytes, spilled_registers, shared_bytes, max_threads,
                 wave_size, kernarg_bytes, load_waits, bytes_in_flight, arguments] = function;
    nlohmann::json json = {{"name", name},
                           {"registers", registers},
                           {"scalar_registers", scalar_registers},
                           {"spill_bytes", spill_bytes},
                           {"spilled_registers", spilled_registers},
                           {"shared_bytes", shared_bytes},
                           {"max_threads", max_threads},
                           {"wave_size", wave_size},
                           {"kernarg_bytes", kernarg_bytes},
                           {"load_waits", load_waits},
                           {"bytes_in_flight", bytes_in_flight},
                           {"arguments", nlohmann::json::array()}};
    for (const ArgumentInfo& argument : arguments) json["arguments"].push_back(argument_json(argument));
    return json;
}

FunctionInfo function_from(const nlohmann::json& json) {
    FunctionInfo function;
    auto& [name, registers, scalar_registers, spill_bytes, spilled_registers, shared_bytes, max_threads, wave_size,
           kernarg_bytes, load_waits, bytes_in_flight, arguments] = function;
    json.at("name").get_to(name);
    json.at("registers").get_to(registers);
    json.at("scalar_registers").get_to(scalar_registers);
    json.at("spill_bytes").get_to(spill_bytes);
    json.at("spilled_registers").get_to(spilled_registers);
    json.at("shared_bytes").get_to(shared_bytes);
    json.at("max_threads").get_to(max_threads);
    json.at("wave_size").get_to(wave_size);
    json.at("kernarg_bytes").get_to(kernarg_bytes);
    json.at("load_waits").get_to(load_waits);
    json.at("bytes_in_flight").get_to(bytes_in_flight);
    for (const nlohmann::json& argument : json.at("arguments")) arguments.push_back(argument_from(argument));
    return function;
}

std::string metadata_of(const Artifact& artifact) {
    const auto& [target, format, binary, toolchain, functions, compile_ms] = artifact;
    nlohmann::json metadata = {{"target", target},
                               {"format", format},
                               {"toolchain", toolchain},
                               {"functions", nlohmann::json::array()},
                               {"compile_ms", compile_ms}};
    for (const FunctionInfo& function : functions) metadata["functions"].push_back(function_json(function));
    // A toolchain's version string is whatever its vendor wrote; one that is not UTF-8 must not end a store.
    return metadata.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Offer<Artifact> artifact_from(std::string_view metadata, std::string_view binary) try {
    const nlohmann::json parsed = nlohmann::json::parse(metadata);
    Artifact artifact;
    parsed.at("target").get_to(artifact.target);
    parsed.at("format").get_to(artifact.format);
    parsed.at("toolchain").get_to(artifact.toolchain);
    for (const nlohmann::json& function : parsed.at("functions")) artifact.functions.push_back(function_from(function));
    parsed.at("compile_ms").get_to(artifact.compile_ms);
    artifact.binary = binary;
    return artifact;
} catch (const nlohmann::json::exception& error) {
    return Declined{fmt::format("its metadata does not parse ({})", error.what())};
}

}  // namespace

std::string encode_entry(const Entry& entry) {
    const std::string metadata = metadata_of(entry.artifact);
    const std::string& binary = entry.artifact.binary;
    std::string bytes;
    bytes.reserve(kHeaderBytes + entry.key_text.size() + metadata.size() + binary.size() + kDigestBytes);
    bytes += kMagic;
    append_little_endian(bytes, static_cast<std::uint32_t>(kCacheSchema));
    append_little_endian(bytes, std::uint32_t{0});
    bytes += text_of(entry.digest);
    for (const std::size_t size : {entry.key_text.size(), metadata.size(), binary.size()})
        append_little_endian(bytes, static_cast<std::uint64_t>(size));
    bytes += entry.key_text;
    bytes += metadata;
    bytes += binary;
    bytes += text_of(sha256_of_halves(bytes));
    return bytes;
}

Offer<Entry> decode_entry(std::string_view bytes) {
    if (bytes.size() < kHeaderBytes + kDigestBytes)
        return Declined{fmt::format("it has {} bytes, fewer than an empty entry", bytes.size())};
    const std::string_view body = bytes.substr(0, bytes.size() - kDigestBytes);
    if (text_of(sha256_of_halves(body)) != bytes.substr(body.size())) return Declined{"its checksum does not match"};

    Reader reader{body};
    if (reader.take(kMagic.size()) != kMagic) return Declined{"it is not a kernel entry"};
    const auto schema = reader.integer<std::uint32_t>();
    if (schema != kCacheSchema) return Declined{fmt::format("its schema is {}, not {}", schema, kCacheSchema)};
    reader.integer<std::uint32_t>();  // reserved
    const std::string_view digest = reader.take(kDigestBytes);
    std::array<std::uint64_t, 3> sizes{};
    std::uint64_t unclaimed = body.size() - kHeaderBytes;
    for (std::uint64_t& size : sizes) {
        size = reader.integer<std::uint64_t>();
        if (size > unclaimed) return Declined{"its sizes do not add up"};
        unclaimed -= size;
    }
    if (unclaimed != 0) return Declined{"its sizes do not add up"};

    const std::string_view key_text = reader.take(sizes[0]);
    const std::string_view metadata = reader.take(sizes[1]);
    Offer<Artifact> artifact = artifact_from(metadata, reader.take(sizes[2]));
    if (!artifact) return Declined{artifact.reason()};
    Entry entry{sha256(key_text), std::string(key_text), std::move(*artifact)};
    if (text_of(entry.digest) != digest) return Declined{"its digest is not that of its key"};
    return entry;
}

}  // namespace rowjit
