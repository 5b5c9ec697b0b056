// The logistic loss, and the angular margin of face recognition.
//
// Logits and cosines are T, target ids I, losses S. A target below 0 is no target.
#include "control.cuh"
#include "rows.cuh"

// log(1 + exp(x)) - target x, which is max(x, 0) + log(1 + exp(-|x|)) - target x.
template <typename T, typename I, typename S>
__global__ void logistic_loss(const T* logits, const I* targets, S* loss, i64 count) {
  typedef Wide<S> W;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    W x = wide(logits[at]), target = wide(targets[at]);
    W found = larger(x, (W)0) + log1p_of(exp_of(-abs_of(x))) - target * x;
    loss[at] = narrow<S>(target < 0 ? (W)0 : found);
  }
}

// sigmoid(x) - target; times the loss scale where `scaled`.
template <typename T, typename I>
__global__ void logistic_loss_grad(const T* logits, const I* targets, T* slopes,
                                   const Control* control, int scaled, i64 count) {
  typedef Wide<T> W;
  W scale = scaled ? (W)control->loss_scale : (W)1;
  for (i64 at = first_element(); at < count; at += element_stride()) {
    W target = wide(targets[at]);
    W found = (W)1 / ((W)1 + exp_of(-wide(logits[at]))) - target;
    slopes[at] = narrow<T>(target < 0 ? (W)0 : found * scale);
  }
}

// The cosine brought to where the slope of its angle is finite, and that angle's sine.
template <typename W> struct Angle {
  W cosine, sine;

  __device__ Angle(W given, W largest)
      : cosine(larger(-largest, smaller(given, largest))),
        sine(sqrt_of(((W)1 - cosine) * ((W)1 + cosine))) {}
};

// scale cosine, but scale cos(angle + margin) at the target's class; class `first` is column 0.
template <typename T, typename I>
__global__ void arc_margin(const T* cosine, const I* targets, T* y, double scale,
                           double margin_cosine, double margin_sine, double largest, i64 first,
                           i64 rows, i64 columns) {
  typedef Wide<T> W;
  W here[Row<T>::N];
  for (i64 number = blockIdx.x; number < rows; number += gridDim.x) {
    Row<T> row(number, columns);
    i64 target = wide(targets[number]);
    int place = target < 0 ? -1 : (int)(target - first);
    for (int at = row.first(); at < row.columns; at += row.stride()) {
      row.take_at(here, cosine, at, (W)0);
      for (int k = 0; k < Row<T>::N; k++) {
        if (at + k == place) {
          Angle<W> angle(here[k], (W)largest);
          here[k] = angle.cosine * (W)margin_cosine - angle.sine * (W)margin_sine;
        }
        here[k] *= (W)scale;
      }
      row.put_at(y, at, here);
    }
  }
}

// scale dy, but at the target's class scale dy (cos(margin) + sin(margin) cosine / sine).
template <typename T, typename I>
__global__ void arc_margin_grad(const T* cosine, const I* targets, const T* dy, T* slopes,
                                double scale, double margin_cosine, double margin_sine,
                                double largest, i64 first, i64 rows, i64 columns) {
  typedef Wide<T> W;
  W here[Row<T>::N];
  for (i64 number = blockIdx.x; number < rows; number += gridDim.x) {
    Row<T> row(number, columns);
    i64 target = wide(targets[number]);
    int place = target < 0 ? -1 : (int)(target - first);
    for (int at = row.first(); at < row.columns; at += row.stride()) {
      row.take_at(here, dy, at, (W)0);
      for (int k = 0; k < Row<T>::N; k++) {
        here[k] *= (W)scale;
        if (at + k == place && row.has(at + k)) {
          Angle<W> angle(wide(cosine[row.start + place]), (W)largest);
          here[k] *= (W)margin_cosine + (W)margin_sine * angle.cosine / angle.sine;
        }
      }
      row.put_at(slopes, at, here);
    }
  }
}
