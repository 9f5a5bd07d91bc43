/* libstdc++ asks glibc 2.32 and newer whether there is only one thread, to save atomic operations. The wheel has libstdc++ inside
   and must run with glibc 2.28, as torch's own wheels do. "No" is always right, so it brings that answer along. */
char __libc_single_threaded = 0;
