//go:build !cuda

package structure

// tags are the build tags with which the packages are checked.
const tags = ""
