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

// Image is a compiled file of kernels.
type Image struct {
	Name  string // of the file, without its suffix
	Files fs.FS  // contains the file with the suffixes .ptx and .fatbin
}

// Embedded reports whether the program contains kernels, which needs the build tag cuda or
// emulator.
func Embedded() bool { return ptxfiles.Tensor != nil }

// Find returns the image that contains a kernel, or nil.
func Find(kernel string) *Image { return index()[kernel] }

// Compiled returns a fatbin of all kernels of the file for GPUs of compute capability 8.x and 9.0,
// or nil if there is none.
func (i *Image) Compiled() []byte { return i.read(".fatbin") }

// PTX returns the PTX of one kernel, for the driver to compile. The other kernels of the file are
// left out, because the driver spends most of its time on compiling each of them.
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
		panic(err) // it is embedded, so reading can't fail
	}
	return code
}

// A kernel's name is between entry and a parenthesis, and end closes its body.
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
