// From a flat index to the places of two operands: see executor/cuda/kernels/strides.py.
//
// A table has three rows of DIMS_MAX numbers: sizes of dims, from the outermost to the innermost,
// and the strides of both operands in elements. I is the type of the index: 32 bits where they do,
// as a division of 64 takes several times as long.
#pragma once
#include "scalar.cuh"

const int DIMS_MAX = 8;

struct Places { i64 first, second; };

template <typename I> __device__ inline Places places_of(I index, const i64* table, int dims) {
  const i64 *first = table + DIMS_MAX, *second = first + DIMS_MAX;
  Places found = {0, 0};
  for (int dim = dims - 1; dim > 0; dim--) {
    I size = (I)table[dim], outer = index / size;
    i64 here = (i64)(index - outer * size);
    found.first += here * first[dim];
    found.second += here * second[dim];
    index = outer;
  }
  found.first += (i64)index * first[0];
  found.second += (i64)index * second[0];
  return found;
}

// What is computed in of values of two types: the wider of both.
template <typename A, typename B> struct JoinedOf {
  typedef decltype(Wide<A>() + Wide<B>()) type;
};
template <typename A, typename B> using Joined = typename JoinedOf<A, B>::type;
