// REAL is the network's type, and PIXEL that of its images: bytes, or values from 0 to 1.

#ifndef REAL
#define REAL float
#endif
#ifndef PIXEL
#define PIXEL unsigned char
#endif

// pixel / 255, rounded as a division rounds (for every pixel), without the time that a division takes.
__device__ REAL number(unsigned char pixel) {
    const REAL unit = 1 / REAL(255), near = pixel * unit;
    return fma(fma(-near, REAL(255), REAL(pixel)), unit, near);
}
__device__ REAL number(float x) { return x; }
__device__ REAL number(double x) { return x; }
__device__ REAL number(long long x) { return x; }
