! MPI-IO in Fortran, by each of MPI's three ways: -DHEADER for mpif.h, -DMODULE for "use mpi", otherwise mpi_f08.
! usage: fortran FILE
program fortran
#if defined(HEADER)
  implicit none
  include 'mpif.h'
  integer :: file, filetype, request, group, info
  integer :: status(MPI_STATUS_SIZE)
#elif defined(MODULE)
  use mpi
  implicit none
  integer :: file, filetype, request, group, info
  integer :: status(MPI_STATUS_SIZE)
#else
  use mpi_f08
  implicit none
  type(MPI_File) :: file
  type(MPI_Datatype) :: filetype
  type(MPI_Request) :: request
  type(MPI_Group) :: group
  type(MPI_Info) :: info
  type(MPI_Status) :: status
#endif
  integer :: code, rank, ranks, count, i, amode
  integer :: out(6), in(6)
  integer(kind=MPI_OFFSET_KIND) :: zero, at, length
  logical :: flag
  character(len=200) :: path, said
  zero = 0
  call get_command_argument(1, path)
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, code)
  amode = MPI_MODE_RDWR + MPI_MODE_CREATE
  call MPI_File_open(MPI_COMM_WORLD, trim(path), amode, MPI_INFO_NULL, file, code)
  call must(code == MPI_SUCCESS, 'open')
  call MPI_File_get_info(file, info, code)
  call MPI_Info_get(info, 'bivouac_collective', 190, said, flag, code)
  call must(flag, 'this is not the library')
  call MPI_Info_free(info, code)
  call MPI_File_get_group(file, group, code)
  call MPI_Group_size(group, count, code)
  call must(count == ranks, 'group')
  call MPI_Group_free(group, code)
  call MPI_Type_vector(3, 2, 2 * ranks, MPI_INTEGER, filetype, code)
  call MPI_Type_commit(filetype, code)
  at = 8 * rank
  call MPI_File_set_view(file, at, MPI_INTEGER, filetype, 'native', MPI_INFO_NULL, code)
  call must(code == MPI_SUCCESS, 'set_view')
  do i = 1, 6
    out(i) = 100 * rank + i
  end do
  call MPI_File_write_all(file, out, 6, MPI_INTEGER, status, code)
  call MPI_Get_count(status, MPI_INTEGER, count, code)
  call must(count == 6, 'write_all')
  in = 0
  call MPI_File_iread_at(file, zero, in, 6, MPI_INTEGER, request, code)
  call MPI_Wait(request, status, code)
  call MPI_Get_count(status, MPI_INTEGER, count, code)
  call must(count == 6 .and. all(in == out), 'iread_at')
  call MPI_File_get_position(file, at, code)
  call must(at == 6, 'get_position')
  call MPI_Barrier(MPI_COMM_WORLD, code)
  call MPI_File_set_view(file, zero, MPI_INTEGER, MPI_INTEGER, 'native', MPI_INFO_NULL, code)
  call MPI_File_get_size(file, length, code)
  call must(length == 24 * ranks, 'get_size')
  do i = 0, 3 * ranks - 1
    at = 2 * i
    call MPI_File_read_at(file, at, in, 2, MPI_INTEGER, status, code)
    count = 100 * mod(i, ranks) + 2 * (i / ranks)
    call must(in(1) == count + 1 .and. in(2) == count + 2, 'read_at')
  end do
  call MPI_Barrier(MPI_COMM_WORLD, code)
  call MPI_File_write_ordered(file, out, 1, MPI_INTEGER, status, code)
  call MPI_File_get_position_shared(file, at, code)
  call must(at == ranks, 'write_ordered')
  at = -1
  call MPI_File_read_at(file, at, in, 1, MPI_INTEGER, status, code)
  call MPI_Error_class(code, count, code)
  call must(count == MPI_ERR_ARG, 'an offset in front of the file')
  call MPI_Type_free(filetype, code)
  call MPI_File_close(file, code)
  call must(code == MPI_SUCCESS, 'close')
  if (rank == 0) then
    call MPI_File_delete(trim(path), MPI_INFO_NULL, code)
    call must(code == MPI_SUCCESS, 'delete')
  end if
  call MPI_Finalize(code)
contains
  subroutine must(holds, what)
    logical, intent(in) :: holds
    character(len=*), intent(in) :: what
    integer :: ignored
    if (holds) return
    print *, 'rank', rank, ': ', what
    call MPI_Abort(MPI_COMM_WORLD, 1, ignored)
  end subroutine
end program
