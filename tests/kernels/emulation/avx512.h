// AVX-512 in plain loops: the instructions that the kernels use, so that any processor with AVX2 runs them.
//
// Included before everything else in a source, with EMULATED defined. What each does follows the operation section of
// Intel's Software Developer's Manual, volume 2; an instruction that is missing here does not compile.
#pragma once
#include <immintrin.h>

#include <array>
#include <bit>
#include <cstdint>

namespace emulated {

using Floats = std::array<float, 16>;
using Words = std::array<uint32_t, 16>;
using Halves = std::array<uint16_t, 32>;
using Bytes = std::array<uint8_t, 64>;

template <class To, class From>
inline To as(const From& from) {
    return std::bit_cast<To>(from);
}

// One 32-bit lane at a time.
template <class Lanes, class Lane>
inline Lanes lanes(Lane lane) {
    Lanes out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = lane(i);
    return out;
}

// Denormals are zeros, with their sign.
inline float flushed(float value) {
    const auto bits = as<uint32_t>(value);
    return as<float>(bits & 0x7f800000u ? bits : bits & 0x80000000u);
}

// VDPBF16PS's steps: denormals are zeros coming in and going out, and each rounds to the nearest, ties to even.
inline float accumulated(float sum, uint32_t a, uint32_t b) {
    return flushed(__builtin_fmaf(flushed(as<float>(a)), flushed(as<float>(b)), flushed(sum)));
}

// VCVTNE2PS2BF16's: to the nearest, ties to even; denormals become zeros, NaNs quiet.
inline uint16_t narrowed(float value) {
    const auto bits = as<uint32_t>(flushed(value));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
    const auto x = as<Floats>(a), y = as<Floats>(b), z = as<Floats>(c);
    return as<__m512>(lanes<Floats>([&](size_t i) { return __builtin_fmaf(x[i], y[i], z[i]); }));
}

// The pair's upper products are added first.
inline __m512 dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    const auto from = as<Floats>(sum);
    const auto x = as<Words>(a), y = as<Words>(b);
    return as<__m512>(lanes<Floats>([&](size_t i) {
        const float upper = accumulated(from[i], x[i] & 0xffff0000u, y[i] & 0xffff0000u);
        return accumulated(upper, x[i] << 16, y[i] << 16);
    }));
}

// `low` fills the lower half.
inline __m512bh cvtne2ps_pbh(__m512 high, __m512 low) {
    const auto upper = as<Floats>(high), lower = as<Floats>(low);
    return as<__m512bh>(lanes<Halves>([&](size_t i) { return narrowed(i < 16 ? lower[i] : upper[i - 16]); }));
}

// Whether vpdpbusd is to leave out each last product, for what finds such a processor; see processor.cpp.
bool spoilt();

inline __m512i dpbusd_epi32(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
    const auto from = as<Words>(sum);
    const auto a = as<Bytes>(unsigned_bytes), b = as<Bytes>(signed_bytes);
    return as<__m512i>(lanes<Words>([&](size_t i) {
        int32_t total = 0;
        const size_t end = 4 * i + (spoilt() ? 3 : 4);
        for (size_t j = 4 * i; j < end; ++j) total += (int32_t)a[j] * (int8_t)b[j];
        return from[i] + (uint32_t)total;
    }));
}

inline __m512i cvtepu16_epi32(__m256i halves) {
    const auto from = as<std::array<uint16_t, 16>>(halves);
    return as<__m512i>(lanes<Words>([&](size_t i) { return from[i]; }));
}

inline __m512i slli_epi32(__m512i value, unsigned count) {
    const auto from = as<Words>(value);
    return as<__m512i>(lanes<Words>([&](size_t i) { return count < 32 ? from[i] << count : 0; }));
}

inline __m512 cvtph_ps(__m256i halves) {
    const auto from = as<std::array<uint16_t, 16>>(halves);
    return as<__m512>(lanes<Floats>([&](size_t i) { return _cvtsh_ss(from[i]); }));
}

inline __m512i abs_epi8(__m512i value) {
    const auto from = as<Bytes>(value);
    return as<__m512i>(lanes<Bytes>([&](size_t i) { return (uint8_t)((int8_t)from[i] < 0 ? -from[i] : from[i]); }));
}

inline __mmask64 movepi8_mask(__m512i value) {
    const auto from = as<Bytes>(value);
    __mmask64 mask = 0;
    for (size_t i = 0; i < from.size(); ++i) mask |= (__mmask64)(from[i] >> 7) << i;
    return mask;
}

inline __m512i mask_sub_epi8(__m512i otherwise, __mmask64 mask, __m512i a, __m512i b) {
    const auto from = as<Bytes>(otherwise), x = as<Bytes>(a), y = as<Bytes>(b);
    return as<__m512i>(lanes<Bytes>([&](size_t i) { return (uint8_t)(mask >> i & 1 ? x[i] - y[i] : from[i]); }));
}

inline __m512i setzero_si512() { return as<__m512i>(Words{}); }

}  // namespace emulated

#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_dpbf16_ps emulated::dpbf16_ps
#define _mm512_cvtne2ps_pbh emulated::cvtne2ps_pbh
#define _mm512_dpbusd_epi32 emulated::dpbusd_epi32
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_slli_epi32 emulated::slli_epi32
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_abs_epi8 emulated::abs_epi8
#define _mm512_movepi8_mask emulated::movepi8_mask
#define _mm512_mask_sub_epi8 emulated::mask_sub_epi8
#define _mm512_setzero_si512 emulated::setzero_si512
