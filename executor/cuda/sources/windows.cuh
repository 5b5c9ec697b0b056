// Windows over images: which element of the image a tap of the window at a place reads.
//
// b samples, g groups of channels, y x rows and columns of the image. Rows: a tap reads
// `first_y` + place · `place_y` + tap · `tap_y`, and what that place makes is row
// `target_first_y` + place · `target_y` of the target; columns likewise.
#pragma once
#include "scalar.cuh"

struct Windows {
  i64 groups;
  i64 depth, target_channels;         // channels of a group: read by a window, and made
  i64 rows, columns;                  // of the image
  i64 target_rows, target_columns;    // of what is made
  i64 samples, places_y, places_x;    // places of a sample
  i64 window_y, window_x;             // taps of a window
  i64 first_y, first_x, place_y, place_x, tap_y, tap_x;
  i64 target_first_y, target_first_x, target_y, target_x;
  // where the weights of a tap lie: strides in elements
  i64 weight_group, weight_target, weight_depth, weight_first, weight_y, weight_x;
};

// A channel's tap: what it adds to a place, and its weight.
struct Tap {
  i64 source;  // -1: there is none
  i64 weight;
  int y, x;
};

// A place of a group's windows: where its sample begins in the image, where what it makes lies.
struct Place {
  i64 source;  // -1: there is none
  i64 target;
  int y, x;
};

// Where the second of two channels, or of two columns, lies: strides in elements. LAST: channels come
// last, of all groups.
template <bool LAST> __device__ inline i64 image_channel(const Windows& of) {
  return LAST ? 1 : of.rows * of.columns;
}
template <bool LAST> __device__ inline i64 image_column(const Windows& of) {
  return LAST ? of.groups * of.depth : 1;
}
template <bool LAST> __device__ inline i64 target_channel(const Windows& of) {
  return LAST ? 1 : of.target_rows * of.target_columns;
}
template <bool LAST> __device__ inline i64 target_column(const Windows& of) {
  return LAST ? of.groups * of.target_channels : 1;
}

__device__ inline i64 taps(const Windows& of) { return of.depth * of.window_y * of.window_x; }

__device__ inline i64 places(const Windows& of) { return of.samples * of.places_y * of.places_x; }

// Taps go column by column, row by row, channel by channel; where channels come last, channel by
// channel first. So do the weights.
template <bool LAST> __device__ inline Tap tap_of(const Windows& of, i64 number) {
  Tap found = {-1, 0, 0, 0};
  if (number >= taps(of)) return found;
  i64 window = of.window_x * of.window_y;
  i64 channel = LAST ? number % of.depth : number / window;
  i64 place = LAST ? number / of.depth : number % window;
  i64 column = place % of.window_x, row = place / of.window_x;
  found.source = channel * image_channel<LAST>(of);
  found.weight =
      channel * of.weight_depth + of.weight_first + row * of.weight_y + column * of.weight_x;
  found.y = (int)(row * of.tap_y);
  found.x = (int)(column * of.tap_x);
  return found;
}

// Places go column by column, row by row, sample by sample; those from `end` on are none.
template <bool LAST>
__device__ inline Place place_of(const Windows& of, i64 group, i64 number, i64 end) {
  Place found = {-1, -1, 0, 0};
  if (number >= end) return found;
  i64 column = number % of.places_x;
  i64 row = number / of.places_x % of.places_y;
  i64 sample = number / (of.places_x * of.places_y);
  found.source = sample * of.groups * of.depth * of.rows * of.columns +
                 group * of.depth * image_channel<LAST>(of);
  i64 pixel = (of.target_first_y + row * of.target_y) * of.target_columns + of.target_first_x +
              column * of.target_x;
  found.target = sample * of.groups * of.target_channels * of.target_rows * of.target_columns +
                 group * of.target_channels * target_channel<LAST>(of) + pixel * target_column<LAST>(of);
  found.y = (int)(of.first_y + row * of.place_y);
  found.x = (int)(of.first_x + column * of.place_x);
  return found;
}

// What a tap reads at a place: zero in the padding, and where there is no such tap or place.
template <bool LAST, typename T>
__device__ inline Wide<T> value_at(const T* image, const Windows& of, const Tap& tap,
                                   const Place& place) {
  int y = place.y + tap.y, x = place.x + tap.x;
  bool inside = tap.source >= 0 && place.source >= 0 && (unsigned)y < (unsigned)of.rows &&
                (unsigned)x < (unsigned)of.columns;
  i64 from = place.source + tap.source + (y * of.columns + x) * image_column<LAST>(of);
  return inside ? wide(image[from]) : (Wide<T>)0;
}
