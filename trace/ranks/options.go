package ranks

// Options bound what files may cost their reader, all files together. A limit of 0 stands for the
// default: 256 Mi, or 8 for each byte of the files if that is more.
type Options struct {
	MaxMemory int64 // bytes
	MaxWork   int64 // units of about 20 ns
}
