// A convolutional network trained for a whole epoch in one launch. The blocks stay, and take a step in two parts:
//
//   - A block takes an image through all layers, to the loss, and back to the first convolution; where there are many
//     blocks, two neighbours share an image. Between the layers all stays in shared memory; out go only the inputs and
//     the slopes of the dense layers, and the gradients of the convolutions, which are small.
//   - All blocks together compute the dense layers' gradients, products over the batch, and add up the convolutions'. A
//     thread owns one weight or two for the whole epoch, with Adam's averages, in registers.
// needs sm_90a
//
// How they hand each other values: the convolutions' gradients and weights, for which everybody waits, as messages of a
// value and its step. For the dense layers a counter says how many blocks are done: that has time. Their slopes get
// there while the convolutions go back, and their new weights come into shared memory while the next image goes through
// the convolutions. What does not fit there waits in registers.

#include "limit_train.cuh"
