! muster_mpi.f90 - Muster and MPI communicators, for Fortran: the functions of muster_mpi.h, which describes them.
! Compile it with your program, after muster.f90, against your MPI.
!
! SPDX-License-Identifier: MIT OR Apache-2.0
!
! As in muster_mpi.h, Muster's rank number is the rank in MPI_COMM_WORLD, and all functions except muster_mpi_init
! are local. Communicators and groups are those of the module mpi; with mpi_f08 pass the MPI_VAL of its types.
module muster_mpi
  use, intrinsic :: iso_c_binding
  use mpi
  use muster
  implicit none
  private
  public :: muster_mpi_init, muster_mpi_group, muster_mpi_failed

  integer, parameter :: name_size = 64
  integer, parameter :: record_words = int(MUSTER_BOOTSTRAP_RECORD_SIZE) / 4
  integer(c_int32_t), parameter :: default_ms = 10000

contains

  ! As muster_init, for a job whose MPI has no PMIx. Collective over comm, which must have all processes of
  ! MPI_COMM_WORLD in their order. Start config from muster_config().
  function muster_mpi_init(comm, config, context) result(answer)
    integer, intent(in) :: comm
    type(muster_config_t), intent(in) :: config
    type(c_ptr), intent(out) :: context
    integer(c_int) :: answer, ignored
    type(muster_config_t), target :: own
    character(kind=c_char), target :: name(name_size)
    integer, allocatable, target :: record(:), records(:)
    integer :: codes(name_size), rank, ranks, same, error, place

    context = c_null_ptr
    answer = MUSTER_ERR_SYSTEM
    call MPI_Comm_compare(comm, MPI_COMM_WORLD, same, error)
    if (error /= MPI_SUCCESS) return
    answer = MUSTER_ERR_ARGUMENT
    if (same /= MPI_IDENT .and. same /= MPI_CONGRUENT) return
    call MPI_Comm_rank(comm, rank, error)
    call MPI_Comm_size(comm, ranks, error)
    codes = 0
    if (rank == 0) codes = random_name()
    answer = MUSTER_ERR_SYSTEM
    call MPI_Bcast(codes, name_size, MPI_INTEGER, 0, comm, error)
    if (error /= MPI_SUCCESS) return
    do place = 1, name_size
      name(place) = achar(codes(place), c_char)
    end do
    own = config
    if (.not. (c_associated(own%job) .or. is_set('MUSTER_JOB') .or. is_set('PMIX_NAMESPACE'))) own%job = c_loc(name)
    if (own%rank == MUSTER_AUTO) own%rank = int(rank, c_int32_t)
    if (own%ranks == MUSTER_AUTO) own%ranks = int(ranks, c_int32_t)
    allocate(record(record_words), records(record_words * ranks))
    record = 0
    answer = muster_init(c_loc(own), context)
    if (answer == MUSTER_OK) &
      answer = muster_bootstrap_record(context, c_loc(record), merge(own%timeout_ms, default_ms, own%timeout_ms /= 0))
    ! A process that is not connected takes part, too: otherwise the others would block.
    call MPI_Allgather(record, record_words, MPI_INTEGER, records, record_words, MPI_INTEGER, comm, error)
    if (error /= MPI_SUCCESS .and. answer == MUSTER_OK) answer = MUSTER_ERR_SYSTEM
    if (answer == MUSTER_OK) answer = min(muster_take_bootstrap_records(context, c_loc(records), int(ranks, c_size_t)), MUSTER_OK)
    if (answer < 0 .and. c_associated(context)) then
      ignored = muster_finalize(context)
      context = c_null_ptr
    end if
  end function

  ! The group of those ranks of comm that are in one of these states; free it with MPI_Group_free. Returns its size.
  function muster_mpi_group(context, comm, states, group) result(answer)
    type(c_ptr), intent(in) :: context
    integer, intent(in) :: comm
    integer(c_int32_t), intent(in) :: states
    integer, intent(out) :: group
    integer(c_int) :: answer, state
    integer, allocatable :: members(:), in_world(:), chosen(:)
    integer :: all_of_comm, world, ranks, found, place, error

    group = MPI_GROUP_NULL
    answer = muster_rank_count(context)
    if (answer < 0) return
    answer = MUSTER_ERR_SYSTEM
    call MPI_Comm_group(comm, all_of_comm, error)
    if (error /= MPI_SUCCESS) return
    call MPI_Comm_group(MPI_COMM_WORLD, world, error)
    call MPI_Group_size(all_of_comm, ranks, error)
    allocate(members(ranks), in_world(ranks), chosen(ranks))
    members = [(place, place = 0, ranks - 1)]
    call MPI_Group_translate_ranks(all_of_comm, ranks, members, world, in_world, error)
    if (error == MPI_SUCCESS) then
      found = 0
      do place = 1, ranks
        state = MUSTER_RANK_UNKNOWN
        if (in_world(place) /= MPI_UNDEFINED) &
          state = max(muster_rank_state(context, int(in_world(place), c_int32_t)), MUSTER_RANK_UNKNOWN)
        if (iand(states, muster_state(state)) == 0) cycle
        found = found + 1
        chosen(found) = members(place)
      end do
      call MPI_Group_incl(all_of_comm, found, chosen, group, error)
      if (error == MPI_SUCCESS) answer = int(found, c_int)
    end if
    call MPI_Group_free(world, error)
    call MPI_Group_free(all_of_comm, error)
  end function

  ! The ranks of comm that have failed, as a group: as muster_mpi_group.
  function muster_mpi_failed(context, comm, failed) result(answer)
    type(c_ptr), intent(in) :: context
    integer, intent(in) :: comm
    integer, intent(out) :: failed
    integer(c_int) :: answer
    answer = muster_mpi_group(context, comm, muster_state(MUSTER_RANK_FAILED), failed)
  end function

  function is_set(name) result(answer)
    character(*), intent(in) :: name
    logical :: answer
    integer :: length, status
    call get_environment_variable(name, length=length, status=status)
    answer = status == 0 .and. length > 0
  end function

  ! A random name for a job that has none, as character codes, padded with zeros.
  function random_name() result(codes)
    integer :: codes(name_size), unit, error, place
    integer(c_int64_t) :: random, clock
    character(name_size) :: text
    random = 0
    open(newunit=unit, file='/dev/urandom', access='stream', form='unformatted', action='read', status='old', &
         iostat=error)
    if (error == 0) then
      read(unit, iostat=error) random
      close(unit)
    end if
    call system_clock(clock)
    write(text, '(a, z16.16, a, z16.16)') 'mpi-', clock, '-', random
    codes = [(iachar(text(place:place)), place = 1, name_size)]
    codes(len_trim(text) + 1:) = 0
  end function

end module muster_mpi
