package ptx

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/internal/ptxfiles"
)

// Image is what one file of kernels was compiled to.
type Image struct {
	Name  string // of the file, without its suffix
	Files fs.FS  // has it with the suffixes .ptx and .fatbin
}

// Embedded reports whether the program has kernels: it is built with the tag cuda or emulator.
func Embedded() bool { return ptxfiles.Tensor != nil }

// Find returns the image that has a kernel, or nil.
func Find(kernel string) *Image { return index()[kernel] }

// Compiled returns a fatbin of all kernels, for GPUs of compute capability 8.x and 9.0; nil if there
// is none.
func (i *Image) Compiled() []byte { return i.read(".fatbin") }

// PTX returns a kernel for the driver to compile, without the other kernels of the file: most of
// the time that a driver takes is for each of them.
func (i *Image) PTX(kernel string) []byte {
	var only []byte
	text := i.read(".ptx")
	for {
		before, rest, found := bytes.Cut(text, entry)
		only = append(only, before...)
		if !found {
			return only
		}
		body, after, _ := bytes.Cut(rest, end)
		if name, _, _ := bytes.Cut(body, []byte("(")); string(name) == kernel {
			only = append(append(append(only, entry...), body...), end...)
		}
		text = after
	}
}

func (i *Image) read(suffix string) []byte {
	if i.Files == nil {
		return nil
	}
	code, err := fs.ReadFile(i.Files, i.Name+suffix)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		panic(err) // it is in the program
	}
	return code
}

// A kernel's name stands between entry and a parenthesis, and end closes its body.
var (
	entry = []byte("\n.visible .entry ")
	end   = []byte("\n}")
)

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
		image := &Image{Name: name[:len(name)-len(".ptx")], Files: ptxfiles.Tensor}
		text := image.read(".ptx")
		for _, rest, found := bytes.Cut(text, entry); found; _, rest, found = bytes.Cut(rest, entry) {
			kernel, _, _ := bytes.Cut(rest, []byte("("))
			all[string(kernel)] = image
		}
	}
	return all
})

// Kernels returns the names of all kernels, sorted.
func Kernels() []string { return slices.Sorted(maps.Keys(index())) }
