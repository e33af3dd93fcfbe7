package ptx

import (
	"bytes"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/internal/ptxfiles"
)

// Image is a module to load: what one file of kernels was compiled to.
type Image struct {
	Name string // of the file
	PTX  []byte
}

// Embedded reports whether the program has kernels: it is built with the tag cuda or emulator.
func Embedded() bool { return ptxfiles.Tensor != nil }

// Find returns the image that has a kernel, or nil.
func Find(kernel string) *Image { return index()[kernel] }

// entry comes before the name of each kernel, and a parenthesis behind it.
var entry = []byte("\n.visible .entry ")

var index = sync.OnceValue(func() map[string]*Image {
	all := map[string]*Image{}
	if !Embedded() {
		return all
	}
	names, err := fs.Glob(ptxfiles.Tensor, "*.ptx")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, name := range names {
		text, err := fs.ReadFile(ptxfiles.Tensor, name)
		if err != nil {
			panic(err) // it is in the program
		}
		image := &Image{Name: name, PTX: text}
		for _, rest, found := bytes.Cut(text, entry); found; _, rest, found = bytes.Cut(rest, entry) {
			kernel, _, _ := bytes.Cut(rest, []byte("("))
			all[string(kernel)] = image
		}
	}
	return all
})

// Kernels returns the names of all kernels, sorted.
func Kernels() []string { return slices.Sorted(maps.Keys(index())) }
