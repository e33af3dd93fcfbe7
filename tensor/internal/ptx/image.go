package ptx

import (
	"bytes"
	"embed"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

//go:embed *.ptx
var files embed.FS

// Image is a module to load: what one file of kernels was compiled to.
type Image struct {
	Name string // of the file
	PTX  []byte
}

// Find returns the image that has a kernel, or nil.
func Find(kernel string) *Image { return index()[kernel] }

// entry comes before the name of each kernel, and a parenthesis behind it.
var entry = []byte("\n.visible .entry ")

var index = sync.OnceValue(func() map[string]*Image {
	names, err := fs.Glob(files, "*.ptx")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	all := map[string]*Image{}
	for _, name := range names {
		text, err := files.ReadFile(name)
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
