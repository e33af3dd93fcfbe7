package main

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
)

// leastSquares fits a linear function to the last column of the rows, and subtracts it from that
// column of rows and test. It returns the error (RMSE) on test. Columns may depend on each other.
func leastSquares(rows, test [][]float64) float64 {
	x, y := split(rows)
	columns := len(rows[0]) - 1
	var svd mat.SVD
	svd.Factorize(mat.NewDense(len(rows), columns, x), mat.SVDThin)
	w := mat.NewDense(columns, 1, nil)
	if rank := svd.Rank(1e-9); rank > 0 {
		svd.SolveTo(w, mat.NewDense(len(rows), 1, y), rank)
	}
	for _, row := range slices.Concat(rows, test) {
		row[columns] -= floats.Dot(row[:columns], w.RawMatrix().Data)
	}
	_, y = split(test)
	return floats.Norm(y, 2) / math.Sqrt(float64(len(test)))
}

// split returns the columns (rows, columns) before the last one, and the last one.
func split(rows [][]float64) (x, y []float64) {
	for _, row := range rows {
		x, y = append(x, row[:len(row)-1]...), append(y, row[len(row)-1])
	}
	return x, y
}
