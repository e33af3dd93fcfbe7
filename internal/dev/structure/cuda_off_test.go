//go:build !cuda

package structure

// tags are the build tags that the packages are looked at with.
const tags = ""
