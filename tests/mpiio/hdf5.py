"""Parallel HDF5 by h5py, and MPI-IO of mpi4py: what is in the file does not depend on where it is.

usage: hdf5.py FILE
"""
import sys

import h5py
import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
rows, columns = 40 * ranks, 60
with h5py.File(sys.argv[1], "w", driver="mpio", comm=comm) as file:
    plain = file.create_dataset("plain", (rows, columns), dtype="f8")
    plain[rank::ranks] = numpy.arange(40 * columns).reshape(40, columns) + 1000.0 * rank
    chunked = file.create_dataset("chunked", (rows, columns), chunks=(7, 11), dtype="i4")
    with chunked.collective:
        chunked[rank * 40:(rank + 1) * 40] = numpy.arange(40 * columns).reshape(40, columns) * (rank + 1)
    tiles = file.create_group("tiles").create_dataset("tile", (64, 16 * ranks), dtype="u2")
    with tiles.collective:
        tiles[:, rank * 16:(rank + 1) * 16] = rank + numpy.arange(64 * 16).reshape(64, 16)
    grown = file.create_dataset("grown", (10, columns), maxshape=(None, columns), chunks=(5, columns), dtype="f4")
    grown.resize((30 + ranks, columns))
    grown[30 + rank] = float(rank)
    file.attrs["ranks"] = ranks
comm.Barrier()
with h5py.File(sys.argv[1], "r", driver="mpio", comm=comm) as file:
    for of in range(ranks):
        expected = numpy.arange(40 * columns).reshape(40, columns)
        assert (file["plain"][of::ranks] == expected + 1000.0 * of).all()
        assert (file["chunked"][of * 40:(of + 1) * 40] == expected * (of + 1)).all()
        assert (file["grown"][30 + of] == of).all()
comm.Barrier()
raw = MPI.File.Open(comm, sys.argv[1] + ".raw", MPI.MODE_RDWR | MPI.MODE_CREATE)
kind = MPI.DOUBLE.Create_vector(10, 3, 3 * ranks).Commit()
raw.Set_view(24 * rank, MPI.DOUBLE, kind)
raw.Write_all(numpy.arange(30.0) + 100 * rank)
back = numpy.zeros(30)
raw.Read_at_all(0, back)
assert (back == numpy.arange(30.0) + 100 * rank).all()
raw.Close()
