// The shape of a first convolution: its images as they come, and its filters.

#ifndef CHANNELS_IN
#define CHANNELS_IN 1
#endif
#ifndef KERNEL
#define KERNEL 3
#endif
#ifndef PADDING
#define PADDING 0
#endif
#ifndef IMAGE_HEIGHT
#define IMAGE_HEIGHT 28
#define IMAGE_WIDTH 28
#endif
